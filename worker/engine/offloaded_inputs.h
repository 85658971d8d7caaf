// The inputs of recomputed units that wait in host memory between forward and backward: a slot of host memory for each
// unit, and the device's slots to which they return, as the schedule assigns them.
//
//   inputs.Offload(op, input);                          // OffloadInput h.3 m0
//   const units::Activations back = inputs.Fetch(op);   // FetchInput h.3 m0
//
// A copy has the layout of its original, so that whatever computes with it gives the same bits. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/engine/access_order.h"
#include "worker/engine/host_memory.h"
#include "worker/units/unit.h"

namespace muster::engine {

class OffloadedInputs {
 public:
  struct Options {
    const Schedule* schedule;  // all outlive it
    const Inventory* inventory;
    HostMemory* host;
    uint64_t samples = 0;  // of the largest microbatch
    at::Device device = at::kCPU;
    bool poison = false;  // fill a device's slot with NaN after its last use
  };
  // Allocates all slots. Throws Failed: as HostMemory.
  explicit OffloadedInputs(const Options& options);

  // Whether the unit's inputs are offloaded.
  bool Has(int32_t unit) const { return unit < static_cast<int32_t>(of_unit_.size()) && of_unit_[unit].host >= 0; }
  // Throws Failed, InvalidArgument: `input` takes more than is planned.
  void Offload(const Op& op, const units::Activations& input);
  // What the unit's last Offload took, in the device's slot.
  units::Activations Fetch(const Op& op);
  // The unit's backward has ended.
  void EndUse(int32_t unit);

  // REQUIRES: Has(unit).
  const at::Tensor& HostSlot(int32_t unit) const { return host_slots_[of_unit_[unit].host]; }
  const at::Tensor& DeviceSlot(int32_t unit) const { return slots_[of_unit_[unit].device]; }

 private:
  // Where a tensor lies in a slot.
  struct Layout {
    int64_t begin = 0;  // byte
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
  };
  struct OfUnit {
    int32_t host = -1, device = -1;  // slots
    std::vector<Layout> input;       // of the last Offload
  };
  static at::Tensor View(const at::Tensor& slot, const Layout& layout);

  const Options options_;
  std::vector<OfUnit> of_unit_;
  std::vector<at::Tensor> host_slots_, slots_;  // bytes
};

}  // namespace muster::engine
