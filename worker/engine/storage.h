// Where a rank's numbers lie. Units lie one after another in the inventory's order, each as its table orders it
// (strategies/partition/table.h); what is whole and what is only owned follows from the schedule:
//
//   computed with   all of it for good, where no gather names a slot; else a buffer for each slot
//   master weights  what the rank owns, fp32: within the former where that is whole and fp32, else a buffer of its own
//   gradients       fp32, all of it for good, where no slot is opened for them, and what is owned lies within that;
//                   else a buffer for each slot, and one for what is owned
//
// A unit has one slot, so views into slots are made once. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/engine/optimizer.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Elements of a tensor that this rank owns.
struct OwnedExtent {
  const Tensor* tensor = nullptr;  // of the inventory
  int64_t begin = 0;               // element of the tensor
  int64_t length = 0;
  int64_t own = 0;    // element of what the rank owns, all units together
  at::Tensor master;  // fp32 [length]
};

class Storage {
 public:
  struct Options {
    const Inventory* inventory;  // outlive the storage
    const PartitionTable* table;
    const Schedule* schedule;
    uint32_t shard = 0;
    at::Device device = at::kCPU;
    at::ScalarType compute = at::kFloat;
    at::ScalarType reduce = at::kFloat;  // in which gradients travel
    bool poison = false;                 // what is released is filled with NaN, so that a use of it shows
  };
  // All zeros.
  explicit Storage(const Options& options);

  // What a unit is made with: its tensors in the inventory's order, then those that it borrows.
  std::vector<units::Parameter> Parameters(int32_t unit) const;

  // What the rank owns: in the order of its elements.
  const std::vector<OwnedExtent>& parts() const { return parts_; }
  // The same for the optimizer: as few runs as its options and the buffers allow, without frozen tensors.
  std::vector<Run> Runs() const;
  int64_t owned_elements() const { return own_begin_.back(); }

  // A step begins: gradients are zero.
  void ZeroGradients();
  // Makes all of what is computed with from what is owned; nothing where that is left to gathers, or one and the same.
  void Renew();

  // For the ops of a schedule; units [op.unit, op.unit_end). First what is owned is cast to where it is gathered.
  std::vector<collectives::RankShare> BeginGather(const Op& op);
  void Release(const Op& op);
  void OpenGradients(const Op& op);
  // Parts to be reduced, in the dtype in which they travel; afterwards what is owned of them is taken over.
  std::vector<collectives::RankShare> BeginReduce(const Op& op);
  void EndReduce(const Op& op);
  // What is owned, to be summed over replicas.
  std::vector<at::Tensor> BeginAllReduce(const Op& op);
  void EndAllReduce(const Op& op);

  // The Euclidean norm of the gradient that the rank owns: a scalar on the device.
  at::Tensor OwnedNorm() const;

 private:
  struct Mine {  // a range of a unit's flat buffer that this rank owns
    int32_t unit;
    int64_t begin, length, own;
  };
  bool OwnsAll() const { return table_->shards() == 1; }
  int64_t Elements(int32_t unit) const { return static_cast<int64_t>(units_[unit].flat.elements); }
  void FindParts();
  at::Tensor Computed(int32_t unit) const;  // flat, of the unit
  at::Tensor Gradient(int32_t unit) const;
  at::Tensor Travelling(int32_t unit) const;  // as Gradient, in the dtype in which it travels
  at::Tensor Master(const Mine& mine) const;
  at::Tensor OwnedGradient(const Mine& mine) const;
  absl::Span<const Mine> MineOf(int32_t unit, int32_t unit_end) const;

  struct Slotted {  // a unit's place in its slot
    int32_t slot = -1;
    int64_t begin = 0;
  };

  const Inventory* const inventory_;
  const PartitionTable* const table_;
  const Schedule* const schedule_;
  const uint32_t shard_;
  const bool poison_;
  std::vector<partition::OwnedUnit> units_;
  std::map<std::string, std::pair<int32_t, size_t>> places_;  // tensor -> unit, index in its flat unit
  std::vector<int64_t> begin_, own_begin_;                    // by unit, and the end
  std::vector<Mine> mine_;                                    // ascending
  std::vector<size_t> mine_begin_;                            // by unit, and the end
  std::vector<OwnedExtent> parts_;
  std::vector<Slotted> slotted_, gradient_slotted_;  // by unit
  bool master_within_ = false;                       // what is computed with
  at::Tensor computed_, master_, gradients_, own_gradients_, travelling_;
  std::vector<at::Tensor> slots_, gradient_slots_, travelling_slots_;
  std::vector<bool> reduced_;  // by unit, in this step
};

}  // namespace muster::engine
