// A rank's buffers for parameters and gradients. Units lie one after another in the inventory's order, each in its
// table's order (strategies/partition/table.h). The schedule decides what is resident:
//
//   compute parameters  if no gather names a slot: one buffer for the whole model; else one buffer per slot
//   master weights      the owned elements, fp32: a view of the compute parameters if those are whole and fp32, else a
//                       separate buffer
//   gradients           fp32; if no op opens a gradient slot: one buffer for the whole model that contains the owned
//                       elements; else one buffer per slot, and one for the owned elements
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
#include "worker/engine/access_order.h"
#include "worker/engine/optimizer.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Elements of a tensor that this rank owns.
struct OwnedExtent {
  const Tensor* tensor = nullptr;  // of the inventory
  int64_t begin = 0;               // element of the tensor
  int64_t length = 0;
  int64_t own = 0;    // index among all elements that the rank owns
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
    at::ScalarType reduce = at::kFloat;  // dtype in which gradients are communicated
    bool poison = false;                 // fill released parameters with NaN, to expose a use after release
  };
  // Zero-initializes all buffers.
  explicit Storage(const Options& options);

  // A unit's tensors in the inventory's order, then those that it borrows.
  std::vector<units::Parameter> Parameters(int32_t unit) const;

  // The extents that the rank owns, in the order of their elements.
  const std::vector<OwnedExtent>& extents() const { return extents_; }
  // The owned extents for the optimizer, without frozen tensors, merged into as few runs as possible.
  std::vector<Run> Runs() const;
  int64_t owned_elements() const { return own_begin_.back(); }

  // Called at the start of a step.
  void ZeroGradients();
  // Rebuilds the compute parameters from the master weights; a no-op if gathers do that, or if both alias.
  void Renew();

  // For units [op.unit, op.unit_end) of a gather: casts the owned extents into the slot; returns each unit's buffer.
  std::vector<at::Tensor> BeginGather(const Op& op);
  void Release(const Op& op);
  void OpenGradients(const Op& op);
  // Each unit's buffer to reduce, in the reduce dtype; EndReduce then adds the owned ranges to the owned gradients.
  std::vector<at::Tensor> BeginReduce(const Op& op);
  // The ranges of such buffers, by their owners.
  std::vector<collectives::RankShare> SharesOf(const Op& op, const std::vector<at::Tensor>& buffers) const;
  void EndReduce(const Op& op);
  // The owned gradients, to be summed over replicas.
  std::vector<at::Tensor> BeginAllReduce(const Op& op);
  void EndAllReduce(const Op& op);

  // The memory that the op's work on parameters and gradients touches, by its row in the table of ops.
  std::vector<Access> Accesses(const Op& op) const;

  // The Euclidean norm of the gradient that the rank owns: a scalar on the device.
  at::Tensor OwnedNorm() const;

 private:
  struct Mine {  // a range of a unit's flat buffer that this rank owns
    int32_t unit;
    int64_t begin, length, own;
  };
  bool OwnsAll() const { return table_->shards() == 1; }
  int64_t Elements(int32_t unit) const { return static_cast<int64_t>(units_[unit].flat.elements); }
  void FindExtents();
  at::Tensor Computed(int32_t unit) const;  // the unit's flat compute parameters
  at::Tensor Gradient(int32_t unit) const;
  at::Tensor Travelling(int32_t unit) const;  // as Gradient, in the reduce dtype
  at::Tensor Master(const Mine& mine) const;
  at::Tensor OwnedGradient(const Mine& mine) const;
  absl::Span<const Mine> MineOf(int32_t unit, int32_t unit_end) const;
  // The unit, and those that it borrows tensors from.
  std::vector<int32_t> UsedBy(int32_t unit) const;

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
  std::vector<OwnedExtent> extents_;
  std::vector<Slotted> slotted_, gradient_slotted_;  // by unit
  bool master_within_ = false;                       // master weights are views of computed_
  at::Tensor computed_, master_, gradients_, own_gradients_, travelling_;
  std::vector<at::Tensor> slots_, gradient_slots_, travelling_slots_;
  std::vector<bool> reduced_;  // by unit, in this step
};

}  // namespace muster::engine
