// What a rank of a pipeline receives from its neighbors: activations and their gradients, in the slots that the
// schedule assigns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/units/unit.h"

namespace muster::engine {

class ReceivedActivations {
 public:
  struct Options {
    const Schedule *schedule, *evaluation;  // all outlive it
    const Inventory* inventory;
    int64_t samples = 0;  // of the largest microbatch
    at::Device device = at::kCPU;
    at::ScalarType compute = at::kFloat;
  };
  // Allocates all slots, as large as what either schedule receives in them.
  explicit ReceivedActivations(const Options& options);

  // The tensors that the op receives, of `samples` samples, in its slot.
  units::Activations TensorsOf(const Op& op, int64_t samples) const;
  // Whether the tensor lies in a slot.
  bool Owns(const at::Tensor& tensor) const;
  const at::Tensor& SlotOf(const Op& op) const { return slots_[static_cast<size_t>(op.slot)]; }

 private:
  const Options options_;
  std::vector<at::Tensor> slots_;  // bytes
};

// What flows over the edge that the op sends or receives on.
const google::protobuf::RepeatedPtrField<Activation>& FlowOf(const Inventory& inventory, const Op& op);

// Throws Failed, Internal: the tensors are not as declared, which the receiver relies on.
void CheckFlow(const Inventory& inventory, const Op& op, const units::Activations& tensors, int64_t samples,
               at::ScalarType compute);

}  // namespace muster::engine
