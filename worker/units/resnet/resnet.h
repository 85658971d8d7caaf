// The units of residual networks (models/resnet/resnet.h), by LibTorch's operators and autograd on any device.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/units/unit.h"

namespace muster::units {

// UnitMaker of the family. In bf16, convolutions and activations are in bf16; normalization and the loss compute in
// fp32.
absl::StatusOr<std::unique_ptr<UnitModule>> MakeResnetUnit(const Inventory& inventory, const Unit& unit,
                                                           std::vector<Parameter> parameters,
                                                           const UnitOptions& options);

}  // namespace muster::units
