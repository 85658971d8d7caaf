#include "worker/units/unit.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/units/gpt2.h"

namespace muster::units {

absl::StatusOr<std::unique_ptr<UnitModule>> MakeUnit(const Unit& unit, std::vector<Parameter> parameters,
                                                     const UnitOptions& options) {
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
  if (unit.kind() == UNIT_KIND_GPT2_EMBEDDING) return MakeGpt2Embedding(parameters);
  if (unit.kind() == UNIT_KIND_GPT2_BLOCK) {
    if (options.portable) return MakePortableGpt2Block(std::move(parameters), unit.heads(), options.bf16_gemms);
    return MakeGpt2Block(std::move(parameters), unit.heads(), unit.piece_rows(), options);
  }
  return MakeGpt2Head(std::move(parameters), unit.piece_rows(), options);
}

}  // namespace muster::units
