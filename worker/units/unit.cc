#include "worker/units/unit.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/units/gpt2.h"

namespace muster::units {

absl::StatusOr<std::unique_ptr<UnitModule>> MakeUnit(const Unit& unit, std::vector<Parameter> parameters,
                                                     bool portable) {
  size_t expected = 0;
  switch (unit.kind()) {
    case UNIT_KIND_GPT2_EMBEDDING:
      expected = 2;
      break;
    case UNIT_KIND_GPT2_BLOCK:
      expected = 12;
      break;
    case UNIT_KIND_GPT2_HEAD:
      expected = 3;
      break;
    default:
      return absl::UnimplementedError(
          absl::StrCat("unit ", unit.name(), " is of kind ", unit.kind(), ", which this build does not implement"));
  }
  if (parameters.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit ", unit.name(), " has ", parameters.size(), " tensors, its kind needs ", expected));
  }
  const bool by_operators = portable || !parameters[0].value.is_cpu();
  if (unit.kind() == UNIT_KIND_GPT2_EMBEDDING) return MakeGpt2Embedding(std::move(parameters), by_operators);
  if (unit.kind() == UNIT_KIND_GPT2_BLOCK) {
    if (by_operators) return MakeGpt2Block(std::move(parameters), unit.heads());
    return MakeCpuGpt2Block(std::move(parameters), unit.heads(), unit.piece_rows());
  }
  return MakeGpt2Head(std::move(parameters), unit.piece_rows(), by_operators);
}

}  // namespace muster::units
