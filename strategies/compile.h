// From a resolved training spec to what each rank owns, does and needs. The coordinator plans with it, each trainer
// compiles with it, and both compare digests. The one place that lists the strategies.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/budget.h"
#include "strategies/partition/planners.h"
#include "strategies/pipeline/cut.h"
#include "strategies/schedule/schedule.h"

namespace muster::strategies {

// A worker hands a table to its trainers in one message (worker/agent/tables.h): 1.5B by rows on 1,024 ranks takes 5
// MiB.
inline constexpr size_t kMaxTableBytes = size_t{15} << 20;

// Units x microbatches of a step that a spec may ask for: a schedule has up to nine ops for each of these, 130 MB.
inline constexpr uint64_t kMaxUnitMicrobatches = 250'000;

// `world` ranks on one node, of equal memory.
std::vector<RankPlace> AnyPlaces(uint32_t world);

// What the ranks of one stage of a pipeline with one share of its units' tensors train, as a model of its own: its
// units, and its part of the table with its own shards, numbered from 0.
struct ModelPart {
  Inventory inventory;
  PartitionTable table;
};

// How a job is laid out over its ranks.
struct Layout {
  PartitionTable table;
  std::string table_sha256;  // of the table's deterministic serialisation
  Mesh mesh;
  std::vector<RankRole> roles;  // by rank: its place in the mesh
  // By shard: what its shares are in proportion to, as partition::Weights; empty for a table from elsewhere.
  std::vector<uint64_t> weights;
  // By stage and share, as PartAt numbers them; copies of a layout have them in common. Where the only part is all
  // of the model, none: it is not copied.
  std::shared_ptr<const std::vector<ModelPart>> parts;
};

// A part of a model, or all of it where a layout has only one. Model and layout outlive it.
class StageModel {
 public:
  StageModel(const Inventory& inventory, const Layout& layout, uint32_t stage, uint32_t tensor = 0)
      : inventory_(&inventory), table_(&layout.table) {
    if (layout.parts == nullptr) return;
    const ModelPart& part = layout.parts->at(PartAt(layout.mesh, {.pipeline = stage, .tensor = tensor}));
    inventory_ = &part.inventory, table_ = &part.table;
  }
  // A rank's.
  StageModel(const Inventory& inventory, const Layout& layout, const RankRole& role)
      : StageModel(inventory, layout, role.stage(), role.tensor()) {}
  const Inventory& inventory() const { return *inventory_; }
  const PartitionTable& table() const { return *table_; }

 private:
  const Inventory* inventory_;
  const PartitionTable* table_;
};

// The rank's shard among those of its stage and share.
uint32_t ShardInStage(const Layout& layout, uint32_t rank);

// Lays out a table from elsewhere. InvalidArgument: it is not a table of this model, or `world` is not a multiple of
// its shards, or as many ranks as share a sequence (Inventory.context_ranks) do not divide those with tokens of their
// own, or its stages share tensors as no schedule can move them (pipeline::CheckTies).
absl::StatusOr<Layout> LayoutOf(PartitionTable table, const Inventory& inventory, uint32_t world);

// Unimplemented: a strategy that this build does not have yet; InvalidArgument: it does not match the ranks (single
// with 2), or its table is too large; or parallel does not divide the ranks or the units, or stages share tensors as no
// schedule can move them. Messages begin with the field's path, "strategy: ". ResourceExhausted, Cancelled: from the
// budget.
//
// A pipeline's cut is the spec's, or CutUnits' for its stages at `places`; none: at StagePlaces.
absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                  Budget* budget = nullptr, absl::Span<const pipeline::ChunkPlace> places = {});

// If each of several nodes has equally many ranks, of neighboring numbers: how many; else 0.
uint32_t RanksOnEachNode(absl::Span<const RankPlace> ranks);

// By stage: as fast as its slowest rank where shares are by speed, else all alike; whatever their memory.
std::vector<pipeline::ChunkPlace> StagePlaces(const Train& train, absl::Span<const RankPlace> ranks);

// The name in a spec: "fsdp".
const char* KindOf(const Strategy& strategy);

// Whether each device has all parameters all the time, so that offload.parameters does not go with it: ddp, zero before
// stage 3, and fsdp no_shard.
bool KeepsAllParameters(const Strategy& strategy);

// Whether ragged shares are in proportion to speed.
bool SharesBySpeed(const Strategy& strategy);

// Of the ranks of one stage: those with different shares of its tensors do the same with them.
struct RankProgram {
  Schedule schedule;    // of a training step
  Schedule evaluation;  // of a pass forward
  std::string digest;   // of both; empty: this is an outline
  // Of an outline: microbatches that are left out in the middle of the step.
  uint32_t left_out = 0;
};

// `train` must be resolved. Errors as MakeLayout, but for ties. The schedules of the stages are not compared
// (CheckStages).
absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout, uint32_t rank,
                                    Budget* budget = nullptr);

// Of both schedules.
std::string DigestOf(const RankProgram& program);

// By stage, the same with fewer microbatches where there are very many: they repeat each other, so a few of them show
// what a rank needs and how long it takes. A pipeline by GPipe keeps all microbatches, and so does its outline. What a
// program is compared by before it is compiled. The stages fit together (CheckStages). InvalidArgument also: they would
// wait for each other because of a tensor that they share.
absl::StatusOr<std::vector<RankProgram>> Outline(const Train& train, const Inventory& inventory, const Layout& layout,
                                                 Budget* budget = nullptr);

// By stage, the whole programs, as Compile has them. The stages fit together (CheckStages). All are held at the same
// time: of as many ops as a spec may ask for, 130 MB. Errors as Outline.
absl::StatusOr<std::vector<RankProgram>> CompileStages(const Train& train, const Inventory& inventory,
                                                       const Layout& layout, Budget* budget = nullptr);

// Bytes that a rank needs. All but the activations are allocated from the first step to the last: the sum of the parts
// with the activations' peak is the peak.
struct Memory {
  uint64_t fixed = 0;  // of a process on a GPU, whatever the model: FixedBytes; on a CPU 0
  // The weights that it owns, as they are stored (StoredDtype). If its schedule gathers into no slot, it has all
  // parameters instead, in the dtype of computing, beside the owned ones that are stored in another one. And all
  // buffers, fp32, twice if a step may be skipped.
  uint64_t parameters = 0;
  uint64_t gradients = 0;        // fp32, of what it owns, or of all where none wait in slots
  uint64_t optimizer_state = 0;  // fp32, of what it owns
  uint64_t gather_buffers = 0;   // slots that parameters are gathered into, in the dtype of computing
  uint64_t reduce_buffers = 0;   // slots of gradients, fp32; with bf16 reductions also a buffer of half the size
  // The peak of the walks through training and evaluation, or of the update; and the slots to which offloaded inputs
  // return, which are allocated from the first step to the last.
  uint64_t activations = 0;
  uint64_t peak = 0;
  // What is offloaded of what it owns: weights as they are stored, gradients and state in fp32, and weights in the
  // dtype of computing where that is another one; and the inputs of recomputed units, fp32. On a CPU, whose memory it
  // is, also part of the peak, unless it is a file.
  uint64_t host = 0;
};
// What a process that runs this schedule takes of a GPU beside its tensors: the context, the workspaces of cuBLAS, and
// the buffers of each communicator with more than one rank. Assumed, since no GPU has run it yet: the trainer logs what
// it finds ("device memory").
uint64_t FixedBytes(const Inventory& inventory, const Mesh& mesh, const Schedule& schedule);
// By shard, of the ranks that run `programs`, one for each stage: cheap for any number of ranks.
std::vector<Memory> MemoryByShard(const Train& train, const Inventory& inventory, const Layout& layout,
                                  absl::Span<const RankProgram> programs);
// How much each additional owned element raises the peak of a rank of the stage that runs `program`.
uint64_t BytesAnElement(const Train& train, const StageModel& stage, const RankProgram& program);
// The plan of one rank, which runs `program`.
Memory MemoryOf(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                uint32_t rank);

// A share of `sequences`: consecutive; together the shares are all of them, and the first ones have one more if it does
// not divide.
struct Share {
  uint64_t first = 0;
  uint64_t sequences = 0;
};
// Of `sharers`, number `index`.
Share ShareOf(uint64_t sequences, uint32_t sharers, uint32_t index);
// A rank's: those of a stage divide the samples, and stages share them, as do ranks that share sequences.
Share ShareOf(uint64_t sequences, const Mesh& mesh, uint32_t rank);

// In which weights are stored between steps: trained ones by precision.params, frozen ones in bf16 where they are
// computed with in that. Never fp16, whose range is too small to keep weights in.
Dtype StoredDtype(const Train& train, bool frozen);

// Whether gradients are computed times a loss scale: in fp16.
bool ScalesLoss(const Train& train);

// Whether a step that is not finite may be skipped: by on_nonfinite, or by the loss scale. Buffers are then
// kept as they were before the step.
bool MaySkipSteps(const Train& train);

// 4, or 2 of bf16 and fp16.
uint64_t DtypeBytes(Dtype dtype);

// Sequences in the largest microbatch of any rank, of so many that divide the batch (Mesh::sample_ranks).
uint32_t MicrobatchRows(const Batch& batch, uint32_t sample_ranks);

// Microbatches of a step, the same on every rank: the largest share of the batch over `microbatch`, rounded up.
uint32_t Microbatches(const Batch& batch, uint32_t sample_ranks);

}  // namespace muster::strategies
