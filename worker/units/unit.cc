#include "worker/units/unit.h"

#include <stdexcept>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/sequence.h"
#include "worker/units/family.h"

namespace muster::units {

DropoutPlace Context::DropoutOfTokens(double rate, int unit, uint32_t which, int64_t tokens) const {
  DropoutPlace place = dropout.At(rate, unit, which);
  if (sequence == nullptr || !place.on()) return place;
  const std::vector<models::TokenRun> runs =
      models::RunsOf(static_cast<uint64_t>(tokens * sequence->size()), static_cast<uint32_t>(sequence->size()),
                     static_cast<uint32_t>(sequence->rank()));
  place.rows = {.begin = static_cast<int64_t>(runs.front().begin),
                .size = static_cast<int64_t>(runs.front().size),
                .apart = static_cast<int64_t>(runs.back().begin - runs.front().begin)};
  return place;
}

DropoutPlace Context::DropoutOfWeights(int unit, int64_t heads, int64_t tokens) const {
  DropoutPlace place = dropout.At(dropout.attention, unit, 0);
  const int64_t all = tokens * (sequence == nullptr ? 1 : sequence->size());
  if (tensor != nullptr) place.first_element = tensor->rank() * heads * all * all;
  return place;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): those that split take it
Activations UnitModule::BackwardInputs(const Context&, Saved, const Activations&, Saved&) {
  throw std::logic_error("the backward of this unit does not split");
}
// NOLINTNEXTLINE(performance-unnecessary-value-param): likewise
void UnitModule::BackwardWeights(Saved) { throw std::logic_error("the backward of this unit does not split"); }

absl::StatusOr<std::unique_ptr<UnitModule>> MakeUnit(const Inventory& inventory, const Unit& unit,
                                                     std::vector<Parameter> parameters, const UnitOptions& options) {
  const auto expected = static_cast<size_t>(unit.tensors_size()) + static_cast<size_t>(unit.borrows_size());
  if (parameters.size() != expected) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit ", unit.name(), " was given ", parameters.size(), " tensors, it has ", expected));
  }
  if (options.buffers.size() != static_cast<size_t>(unit.buffers_size())) {
    return absl::InvalidArgumentError(absl::StrCat("unit ", unit.name(), " was given ", options.buffers.size(),
                                                   " buffers, it has ", unit.buffers_size()));
  }
  if (inventory.has_tensor_rank() && options.portable) {
    return absl::UnimplementedError(absl::StrCat(
        "unit ", unit.name(), " is a share of a unit (parallel.tensor), which ", "portable code does not compute"));
  }
  for (const UnitFamily& family : UnitFamilies()) {
    if (inventory.family() == family.name) return family.make(inventory, unit, std::move(parameters), options);
  }
  return absl::UnimplementedError(absl::StrCat("unit ", unit.name(), " is of the family '", inventory.family(),
                                               "', which this build does not have"));
}

}  // namespace muster::units
