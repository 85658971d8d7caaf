// The units of models from users' libraries: the library's modules, LibTorch's autograd, on any device.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/units/unit.h"

namespace muster::units {

// UnitMaker of the family; binds the modules of options.plugin to the parameters and buffers. The last unit computes
// the loss and the metrics from its output: by the library's own, or cross entropy. It does so in backward, with its
// forward, so in training its forward only saves the input. A language model generates by computing the whole sequence
// for each token: modules keep no cache. FailedPrecondition: no plugin. Unimplemented: bf16 parameters and buffers.
absl::StatusOr<std::unique_ptr<UnitModule>> MakeCustomUnit(const Inventory& inventory, const Unit& unit,
                                                           std::vector<Parameter> parameters,
                                                           const UnitOptions& options);

}  // namespace muster::units
