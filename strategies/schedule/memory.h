// The memory of a schedule, found by walking it. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// By op: the bytes of activations, fp32, while it runs, for microbatches of `sequences` samples: what is kept from each
// forward to its backward, what flows between units, and each unit's temporaries, as the inventory states them. A
// recomputed unit keeps only its input from its forward to its recomputation, and not while that is offloaded; one
// without a backward (in evaluation, or before the first unit that is trained) keeps nothing. What a stage sends counts
// until the pass that waits for it. Parameters, gradients and buffers are not counted, nor the slots to which offloaded
// inputs return and those of other stages' activations: they do not change while the schedule runs.
std::vector<uint64_t> ActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences);

// Their maximum.
uint64_t PeakActivationBytes(const Schedule& schedule, const Inventory& inventory, uint64_t sequences);

// By slot, elements: the largest that is gathered into it, or that waits in it for its reduction. `unit_elements`: of
// each unit's flat buffer, the table's padding included.
std::vector<uint64_t> GatherSlots(const Schedule& schedule, const std::vector<uint64_t>& unit_elements);
std::vector<uint64_t> GradientSlots(const Schedule& schedule, const std::vector<uint64_t>& unit_elements);

// By slot of kInputs or kHostInputs, bytes: the largest input that is put there, of microbatches of `sequences`
// samples, fp32, which is the widest that flows between units.
std::vector<uint64_t> InputSlots(const Schedule& schedule, SlotPool pool, const Inventory& inventory,
                                 uint64_t sequences);

// By slot, bytes: the largest activation or gradient of one that a stage of a pipeline receives into it, likewise.
std::vector<uint64_t> ActivationSlots(const Schedule& schedule, const Inventory& inventory, uint64_t sequences);

}  // namespace muster
