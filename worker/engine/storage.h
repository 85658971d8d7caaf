// A rank's buffers for parameters and gradients. Units lie one after another in the inventory's order, each in its
// table's order (strategies/partition/table.h). The schedule decides what is resident:
//
//   compute parameters  if no gather names a slot: one buffer for the whole model; else one buffer per slot
//   master weights      the owned elements that are trained, fp32 or bf16: a view of the compute parameters if
//                       those are whole and of that dtype, else a separate buffer. Where that is beside compute
//                       parameters of the whole model, the update writes both (Run::computed), so that these are
//                       always the master weights, rounded; slots get what they need when they are gathered
//   frozen weights      the owned elements that are not, as they are computed with: a view of the compute parameters if
//                       those are whole, else a separate buffer. fp32 where the dtype of computing is fp16, whose range
//                       is too small to keep weights in
//   gradients           fp32, of what is trained; if no op opens a gradient slot: one buffer for the whole model that
//                       contains the owned elements; else one buffer per slot, and one for the owned elements
//
// Of a schedule that offloads, the master weights, the gradients that the update reads and the optimizer's state are in
// host memory, and there are the owned parameters in the dtype of computing, too. The device keeps those of its owned
// parameters that no gather's slot has (unless they are fetched into it), and no owned gradients, except where they are
// summed over replicas.
//
// Frozen tensors have no gradients and no optimizer state: in those buffers only the trained ones lie one after another
// (TrainedPart in strategies/partition/table.h). A frozen vector has a scratch for a gradient, see units::Parameter.
//
// A unit has one slot, so views into slots are made once. Not thread-safe.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/engine/access_order.h"
#include "worker/engine/host_memory.h"
#include "worker/engine/optimizer.h"
#include "worker/units/unit.h"

namespace muster::engine {

// Elements of a tensor that this rank owns.
struct OwnedExtent {
  const Tensor* tensor = nullptr;  // of the inventory
  int64_t begin = 0;               // element of the tensor
  int64_t length = 0;
  int64_t own = -1;    // index among all trained elements that the rank owns; -1: frozen
  at::Tensor stored;   // [length], fp32 or bf16
  bool counts = true;  // in sums over ranks and in checkpoints: no other share has the same (models::Counts)
};

class Storage {
 public:
  struct Options {
    const Inventory* inventory;  // outlive the storage
    const PartitionTable* table;
    const Schedule* schedule;
    uint32_t shard = 0;
    uint32_t shards_inside = 1, replicas_inside = 1;  // Mesh
    at::Device device = at::kCPU;
    at::ScalarType compute = at::kFloat;
    at::ScalarType master = at::kFloat;  // dtype in which trained weights are stored: fp32, or bf16 if `compute` is
    at::ScalarType reduce = at::kFloat;  // dtype in which gradients are communicated
    bool poison = false;                 // fill released parameters with NaN, to expose a use after release
    HostMemory* host = nullptr;          // of a schedule that offloads; outlives the storage
  };
  // Zero-initializes all buffers.
  explicit Storage(const Options& options);

  // A unit's tensors in the inventory's order, then those that it borrows.
  std::vector<units::Parameter> Parameters(int32_t unit) const;

  // The extents that the rank owns, in the order of their elements.
  const std::vector<OwnedExtent>& extents() const { return extents_; }
  // Of units [unit, unit_end), the owned elements that are trained: how many, and the first one's index among all.
  int64_t TrainedElements(int32_t unit, int32_t unit_end) const {
    return trained_.own_begin[static_cast<size_t>(unit_end)] - FirstTrained(unit);
  }
  int64_t FirstTrained(int32_t unit) const { return trained_.own_begin[static_cast<size_t>(unit)]; }
  // The same for the optimizer, numbered from the first one. Each tensor for which `whole` is true, which the rank must
  // then own all of, is a run of its own; the others are merged into as few runs as possible.
  using IsWhole = absl::FunctionRef<bool(int32_t unit, const Tensor& tensor)>;
  std::vector<Run> Runs(int32_t unit, int32_t unit_end, IsWhole whole) const;

  // Called at the start of a step.
  void ZeroGradients();
  // Rebuilds what gathers do not copy of the owned parameters as they are computed with, after other changes of the
  // stored ones than an update.
  void Renew();
  // Before the step of units [op.unit, op.unit_end), or of all, in host memory; and after it: what Fetch takes is of
  // the updated weights.
  void BeginStep(const Op& op) const;
  void EndStep(const Op& op);
  void Fetch(const Op& op);
  void Offload(const Op& op);
  bool offloads() const { return host_ != nullptr; }

  // For units [op.unit, op.unit_end) of a gather, or of the first one of two levels: casts the owned extents into the
  // slot, where they are not there already. Returns each unit's buffer.
  std::vector<at::Tensor> BeginGather(const Op& op);
  void Release(const Op& op);
  void OpenGradients(const Op& op);
  // Each unit's buffer to reduce, in the reduce dtype; after the last level EndReduce adds the owned ranges to the
  // owned gradients.
  std::vector<at::Tensor> BeginReduce(const Op& op);
  // The ranges of such buffers, by their owners; inside nodes by the rank in its owner's place, and between them only
  // those that are this rank's there.
  std::vector<collectives::RankShare> ParameterShares(const Op& op, const std::vector<at::Tensor>& buffers) const;
  std::vector<collectives::RankShare> GradientShares(const Op& op, const std::vector<at::Tensor>& buffers) const;
  // Such buffers of an even op, as wholes of its group.
  std::vector<at::Tensor> Wholes(const Op& op, std::vector<at::Tensor> buffers) const;
  void EndReduce(const Op& op);
  // The owned gradients, as they are summed over replicas, between BeginSum and EndSum; the part of each of them that
  // each replica of this node sums with other nodes; and what the rank in `place` of its node sums in the op's group.
  void BeginSum(const Op& op);
  struct Summed {
    at::Tensor values;
    int64_t own = 0;  // index of the first among all trained elements that the rank owns
  };
  std::vector<Summed> AllSummed(const Op& op) const;
  std::vector<collectives::RankShare> SummedParts(const Op& op) const;
  std::vector<Summed> SummedIn(const Op& op, int place) const;
  void EndSum(const Op& op);

  // Of tied tensors (Inventory.tied) that the op moves between stages: what is sent, or received into. TiedGradients of
  // a stage that owns them is received beside their gradient, and AddTied adds it.
  std::vector<at::Tensor> TiedParameters(const Op& op) const;
  std::vector<at::Tensor> TiedGradients(const Op& op) const;
  void AddTied(const Op& op);

  // The memory that the op's work on parameters and gradients touches, by its row in the table of ops.
  std::vector<Access> Accesses(const Op& op) const;

  // The Euclidean norm of the gradient that the rank owns: a scalar where that is.
  at::Tensor OwnedNorm() const;

 private:
  struct Mine {  // a range of a unit's flat buffer that this rank owns
    int32_t unit;
    int64_t begin, length, own;
  };
  // Where units lie one after another: all of their tensors, or the trained ones.
  struct Arrangement {
    std::vector<partition::OwnedUnit> units;
    std::vector<int64_t> begin, own_begin;  // by unit, and the end
    std::vector<Mine> mine;                 // ascending
    std::vector<size_t> mine_begin;         // by unit, and the end

    void Add(partition::OwnedUnit unit, uint32_t shard);
    int64_t Elements(int32_t unit) const { return begin[unit + 1] - begin[unit]; }
    absl::Span<const Mine> MineOf(int32_t unit, int32_t unit_end) const {
      return absl::MakeSpan(mine).subspan(mine_begin[unit], mine_begin[unit_end] - mine_begin[unit]);
    }
    // `root`: of an owner's ranges, in the op's group; none: they are not part of it.
    std::vector<collectives::RankShare> Shares(const Op& op, const std::vector<at::Tensor>& buffers,
                                               absl::FunctionRef<std::optional<uint32_t>(uint32_t owner)> root) const;
  };
  struct Place {  // of a tensor
    int32_t unit = 0;
    size_t index = 0;      // in its flat unit
    int64_t trained = -1;  // element of the unit's trained part; -1: frozen
    int64_t scratch = -1;  // of a frozen vector: element of the scratch
  };
  bool OwnsAll() const { return table_->shards() == 1; }
  Axes AxesOf(const Op& op) const { return muster::AxesOf(*schedule_, op.group); }
  std::optional<uint32_t> RootOf(const Op& op, uint32_t owner) const;
  int64_t PlaceFrozenVectors();
  void FindParts();
  void FindExtents();
  at::Tensor Computed(int32_t unit) const;  // the unit's flat compute parameters
  at::Tensor Gradient(int32_t unit) const;
  at::Tensor Travelling(int32_t unit) const;          // as Gradient, in the reduce dtype
  at::Tensor OwnedGradient(const Mine& mine) const;   // of trained_, on the device
  at::Tensor UpdateGradient(const Mine& mine) const;  // likewise, where the update reads it
  // Of what is numbered as the owned elements that are trained: those of the step's units.
  at::Tensor OfStep(const Op& op, const at::Tensor& trained) const;
  // The unit, and those of this stage that it borrows tensors from.
  std::vector<int32_t> UsedBy(int32_t unit) const;

  struct Part {  // of a range that this rank owns: all of it trained, or all of it frozen
    int32_t unit;
    int64_t begin, length;  // in the unit's flat buffer, padding included
    bool frozen;
    int64_t at;   // among the owned elements that are trained, or among the others
    int64_t own;  // among all owned elements
  };
  absl::Span<const Part> PartsOf(int32_t unit, int32_t unit_end) const {
    return absl::MakeSpan(parts_).subspan(parts_begin_[unit], parts_begin_[unit_end] - parts_begin_[unit]);
  }
  bool IsWithin(const Part& part) const { return part.frozen ? frozen_within_ : master_within_; }
  at::Tensor Computed(const Part& part) const { return Computed(part.unit).narrow(0, part.begin, part.length); }
  at::Tensor Stored(const Part& part) const;
  at::Tensor ToFetch(const Part& part) const;  // in host memory
  at::Tensor Fetched(const Part& part) const;  // on the device
  // Whether gathers find the owned parameters in their place: those of the whole model, or what was fetched.
  bool GathersInPlace() const { return computed_.defined() || (offloads() && !own_computed_.defined()); }
  // What a gather copies into its slot.
  at::Tensor Gathers(const Part& part) const { return offloads() ? Fetched(part) : Stored(part); }

  // A tensor that is tied to another stage's unit: of one that is borrowed its copy and the copy's gradient; of one
  // that is owned what the gradient receives.
  struct Tied {
    int32_t unit = 0;  // that borrows or owns it
    bool owned = false;
    std::string name;
    int32_t parameters = -1, gradient = -1;  // groups
    at::Tensor value, added;                 // of the tensor's shape
  };
  void FindTied(at::ScalarType compute, at::Device device);
  // Calls visit(tied) for those that the op moves.
  template <typename Visit>
  void EachTied(const Op& op, const Visit& visit) const;

  struct Slotted {  // a unit's place in its slot
    int32_t slot = -1;
    int64_t begin = 0;
  };

  const Inventory* const inventory_;
  const PartitionTable* const table_;
  const Schedule* const schedule_;
  const uint32_t shard_, shards_inside_, replicas_inside_;
  const bool poison_;
  Arrangement all_, trained_;
  std::map<std::string, Place> places_;
  std::vector<OwnedExtent> extents_;
  std::vector<Slotted> slotted_, gradient_slotted_;     // by unit
  std::vector<Part> parts_;                             // ascending
  std::vector<size_t> parts_begin_;                     // by unit, and the end
  bool master_within_ = false, frozen_within_ = false;  // they are views of computed_
  bool over_replicas_ = false;                          // gradients are summed over replicas before they are offloaded
  at::Tensor computed_, master_, frozen_, gradients_, own_gradients_, travelling_;
  HostMemory* const host_;
  // In host memory; the last two in the dtype of computing, undefined where master_ and frozen_ have it.
  at::Tensor host_gradients_, host_computed_, host_frozen_;
  at::Tensor own_computed_;  // what gathers take, where it is not fetched into their slots
  at::Tensor scratch_;       // gradients of frozen vectors
  std::vector<at::Tensor> slots_, gradient_slots_, travelling_slots_;
  std::vector<bool> reduced_, offloaded_;  // by unit, in this step
  std::vector<Tied> tied_;
};

}  // namespace muster::engine
