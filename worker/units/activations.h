// What goes from a unit to the next one, as the inventory declares it (Unit.outputs in proto/units.proto), in
// LibTorch's terms: for ranks that receive activations from another rank, and gradients of activations that they have
// sent.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "proto/units.pb.h"
#include "worker/units/unit.h"

namespace muster::units {

// `compute`: the dtype of the parameters.
at::ScalarType TypeOf(const Activation& activation, at::ScalarType compute);
// [samples, shape of one sample...]
std::vector<int64_t> ShapeOf(const Activation& activation, int64_t samples);

// Whether `given`, a unit's outputs or the gradients of them, is what `unit` declares. Internal: it is not; says where.
// Strides may differ: those of a custom unit are its modules'.
absl::Status CheckActivations(const Unit& unit, int64_t samples, at::ScalarType compute, const Activations& given);

}  // namespace muster::units
