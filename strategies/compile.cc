#include "strategies/compile.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/ddp/ddp.h"
#include "strategies/fsdp/fsdp.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/build.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/memory.h"
#include "strategies/single/single.h"
#include "strategies/zero/zero.h"

namespace muster::strategies {
namespace {

absl::Status NotYet(const Strategy& strategy) {
  return absl::UnimplementedError(
      absl::StrCat("strategy: ", KindOf(strategy), " is not in this build yet; supported: single, ddp, zero, fsdp"));
}

absl::StatusOr<PartitionTable> TableOf(const Train& train, const Inventory& inventory,
                                       absl::Span<const RankPlace> ranks) {
  const Strategy& strategy = train.strategy();
  switch (strategy.kind_case()) {
    case Strategy::kSingle:
      if (ranks.size() == 1) return single::TableOf(inventory);
      return absl::InvalidArgumentError(absl::StrCat("strategy: single runs on one rank, resources.ranks is ",
                                                     ranks.size(), "; ddp and fsdp run on several"));
    case Strategy::kDdp:
      return ddp::TableOf(inventory);
    case Strategy::kZero:
      return zero::TableOf(strategy.zero(), inventory, ranks, kMaxTableBytes);
    case Strategy::kFsdp:
      return fsdp::TableOf(strategy.fsdp(), inventory, ranks, kMaxTableBytes);
    default:
      return NotYet(strategy);
  }
}

absl::StatusOr<ScheduleRecipe> RecipeOf(const Train& train, const Inventory& inventory, const Layout& layout) {
  const uint32_t shards = layout.table.shards(), world = static_cast<uint32_t>(layout.roles.size());
  const Strategy& strategy = train.strategy();
  ScheduleRecipe recipe;
  switch (strategy.kind_case()) {
    case Strategy::kSingle:
      recipe = single::RecipeOf();
      break;
    case Strategy::kDdp:
      recipe = ddp::RecipeOf(strategy.ddp(), inventory);
      break;
    case Strategy::kZero:
      recipe = zero::RecipeOf(strategy.zero(), inventory);
      break;
    case Strategy::kFsdp:
      recipe = fsdp::RecipeOf(strategy.fsdp(), inventory, shards, world);
      break;
    default:
      return NotYet(strategy);
  }
  if (world == 1) recipe = single::RecipeOf();
  recipe.even_units = partition::EvenUnits(layout.table);
  recipe.microbatches = static_cast<int32_t>(Microbatches(train.batch(), world));
  recipe.recompute = train.activation_checkpointing();
  return recipe;
}

// Work and bytes for each of the things that are counted before they are made.
constexpr uint64_t kWorkPerOp = 16;       // emitted, checked, walked
constexpr uint64_t kWorkPerDigested = 8;  // an op's text, hashed
constexpr uint64_t kBytesPerOp = sizeof(Op) + 24;
constexpr uint64_t kWorkPerCut = 1;   // of a unit: planned, checked, summed up, serialized
constexpr uint64_t kBytesPerCut = 8;  // as boundaries

// Most ops that a schedule of that recipe has: all that may come for a unit and a microbatch, and once a step.
uint64_t MostOps(const ScheduleRecipe& recipe, uint64_t units) {
  uint64_t each = 2 + (recipe.recompute ? 1 : 0);
  if (recipe.parameters == Parameters::kFreed) each += 4;
  if (recipe.sharded && recipe.gradients == Gradients::kOwned) each += 2;
  return units * (each * static_cast<uint64_t>(recipe.microbatches) + 4) + 3;
}

uint64_t Tensors(const Inventory& inventory) {
  uint64_t tensors = 0;
  for (const Unit& unit : inventory.units()) tensors += static_cast<uint64_t>(unit.tensors_size());
  return tensors;
}

// Before a table is made. Whole and ragged placements look for an owner of every tensor among all shards.
absl::Status SpendOnTable(const Train& train, const Inventory& inventory, uint64_t ranks, Budget* budget) {
  const Strategy& strategy = train.strategy();
  const bool sharded = strategy.has_zero() || strategy.has_fsdp();
  const Placement placement = strategy.has_zero() ? strategy.zero().placement() : strategy.fsdp().placement();
  const bool searched = placement == PLACEMENT_WHOLE || placement == PLACEMENT_RAGGED;
  const uint64_t shards = sharded ? ranks : 1, tensors = Tensors(inventory),
                 units = static_cast<uint64_t>(inventory.units_size());
  // It ends when it is too large to be handed out, and each cut takes a byte at least.
  const uint64_t cuts = std::min<uint64_t>(kMaxTableBytes, units * shards);
  const auto what = [&] {
    return absl::StrCat("a partition table of ", units, " units on ", ranks,
                        " ranks; use fewer ranks, or strategy.placement: even");
  };
  absl::Status status =
      Spend(budget, 16 * tensors + kWorkPerCut * cuts + (searched ? cuts * tensors / units / 4 : 0), what);
  return status.ok() ? Hold(budget, kBytesPerCut * cuts, what) : status;
}

absl::StatusOr<RankProgram> CompileRecipe(const ScheduleRecipe& recipe, const Inventory& inventory, Budget* budget,
                                          bool digest) {
  const uint64_t units = static_cast<uint64_t>(inventory.units_size());
  const uint64_t ops = MostOps(recipe, units);
  const auto what = [&] {
    return absl::StrCat("a schedule of ", recipe.microbatches, " microbatches of ", units, " units, up to ", ops,
                        " ops; raise batch.microbatch");
  };
  absl::Status status = Spend(budget, ops * (kWorkPerOp + (digest ? kWorkPerDigested : 0)), what);
  if (status.ok()) status = Hold(budget, ops * kBytesPerOp, what);
  if (!status.ok()) return status;
  RankProgram program{.schedule = Build(inventory, recipe), .evaluation = BuildEvaluation(inventory, recipe)};
  if (program.schedule.ops.size() > ops) {
    return absl::InternalError(
        absl::StrCat("planning expected at most ", ops, " ops, the schedule has ", program.schedule.ops.size()));
  }
  for (const Schedule* schedule : {&program.schedule, &program.evaluation}) {
    if (absl::Status s = Check(*schedule, inventory); !s.ok()) return s;
  }
  if (digest) program.digest = DigestOf(program);
  return program;
}

// What a rank holds by its schedules, in elements of flat buffers.
struct Buffers {
  uint64_t all = 0;              // all units, with the table's padding
  bool whole_parameters = true;  // resident across steps, not only the owned ones
  bool whole_gradients = true;   // not only the owned ones
  uint64_t gathered = 0;         // slots that parameters are gathered into
  uint64_t waiting = 0;          // slots that gradients wait in for their reduction
  bool reduces = false;          // gradients are reduced
};

// Evaluation uses the slots of training. `units`: elements of each unit's flat buffer.
Buffers BuffersOf(const RankProgram& program, const std::vector<uint64_t>& units) {
  Buffers buffers;
  buffers.all = std::accumulate(units.begin(), units.end(), uint64_t{0});
  const std::vector<uint64_t> slots = GatherSlots(program.schedule, units);
  buffers.gathered = std::accumulate(slots.begin(), slots.end(), uint64_t{0});
  const std::vector<uint64_t> gradients = GradientSlots(program.schedule, units);
  buffers.waiting = std::accumulate(gradients.begin(), gradients.end(), uint64_t{0});
  buffers.whole_parameters = slots.empty();
  buffers.whole_gradients = gradients.empty();
  for (const Op& op : program.schedule.ops) buffers.reduces |= ReducesGradients(op.kind);
  return buffers;
}

}  // namespace

uint64_t StateTensors(const Optimizer& optimizer) {
  if (optimizer.has_adamw()) return 2;
  if (optimizer.has_lion()) return 1;
  return optimizer.sgd().momentum() > 0 ? 1 : 0;
}

const char* KindOf(const Strategy& strategy) {
  switch (strategy.kind_case()) {
    case Strategy::kSingle:
      return "single";
    case Strategy::kDdp:
      return "ddp";
    case Strategy::kZero:
      return "zero";
    case Strategy::kFsdp:
      return "fsdp";
    case Strategy::kPipeline:
      return "pipeline";
    case Strategy::kAuto:
      return "auto";
    case Strategy::KIND_NOT_SET:
      return "none";
  }
  return "unknown";
}

std::vector<RankPlace> AnyPlaces(uint32_t world) { return std::vector<RankPlace>(world); }

Share ShareOf(uint64_t sequences, uint32_t world, uint32_t rank) {
  const uint64_t each = sequences / world, left = sequences % world;
  return {rank * each + std::min<uint64_t>(rank, left), each + (rank < left ? 1 : 0)};
}

uint32_t MicrobatchRows(const Batch& batch, uint32_t world) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), world, 0).sequences);
  return batch.microbatch() > 0 ? std::min(share, batch.microbatch()) : share;
}

uint32_t Microbatches(const Batch& batch, uint32_t world) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), world, 0).sequences);
  const uint32_t rows = std::max(1u, MicrobatchRows(batch, world));
  return std::max(1u, (share + rows - 1) / rows);
}

absl::StatusOr<Layout> LayoutOf(PartitionTable table, const Inventory& inventory, uint32_t world) {
  if (absl::Status s = partition::Check(table, inventory); !s.ok()) return s;
  if (world % table.shards() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a table of ", table.shards(), " shards, and ", world, " ranks are not a multiple of that"));
  }
  Layout layout;
  for (uint32_t rank = 0; rank < world; ++rank) {
    RankRole& role = layout.roles.emplace_back();
    role.set_rank(rank);
    role.set_shard(rank % table.shards());
    role.set_replica(rank / table.shards());
  }
  layout.table_sha256 = partition::TableSha256(table);
  layout.table = std::move(table);
  return layout;
}

bool SharesBySpeed(const Strategy& strategy) {
  return (strategy.zero().placement() == PLACEMENT_RAGGED && strategy.zero().shares() == SHARES_SPEED) ||
         (strategy.fsdp().placement() == PLACEMENT_RAGGED && strategy.fsdp().shares() == SHARES_SPEED);
}

absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                  Budget* budget) {
  if (absl::Status s = SpendOnTable(train, inventory, ranks.size(), budget); !s.ok()) return s;
  absl::StatusOr<PartitionTable> table = TableOf(train, inventory, ranks);
  if (!table.ok()) return table.status();
  if (table->ByteSizeLong() > kMaxTableBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy: on ", ranks.size(), " ranks its partition table takes more than ", FormatBytes(kMaxTableBytes),
        ", the most that can be handed out; of the placements, even has the "
        "smallest tables; use that, fewer ranks, or a model of fewer layers"));
  }
  absl::StatusOr<Layout> layout = LayoutOf(*std::move(table), inventory, static_cast<uint32_t>(ranks.size()));
  if (layout.ok()) {
    layout->weights = partition::Weights(ranks, layout->table.shards(),
                                         SharesBySpeed(train.strategy()) ? SHARES_SPEED : SHARES_MEMORY,
                                         partition::FlatElements(inventory));
  }
  return layout;
}

absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout, uint32_t rank,
                                    Budget* budget) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  if (rank >= world) return absl::InvalidArgumentError(absl::StrCat("strategy: rank ", rank, " of ", world));
  const absl::StatusOr<ScheduleRecipe> recipe = RecipeOf(train, inventory, layout);
  if (!recipe.ok()) return recipe.status();
  return CompileRecipe(*recipe, inventory, budget, /*digest=*/true);
}

std::string DigestOf(const RankProgram& program) {
  return Sha256Hex(absl::StrCat(Digest(program.schedule), Digest(program.evaluation)));
}

absl::StatusOr<RankProgram> Outline(const Train& train, const Inventory& inventory, const Layout& layout,
                                    Budget* budget) {
  // So many show how a step begins, goes on and ends, whatever is gathered ahead.
  constexpr int32_t kLeast = 6, kUnitMicrobatches = 8000;
  absl::StatusOr<ScheduleRecipe> recipe = RecipeOf(train, inventory, layout);
  if (!recipe.ok()) return recipe.status();
  const int32_t all = recipe->microbatches;
  recipe->microbatches = std::min(all, std::max(kLeast, kUnitMicrobatches / inventory.units_size()));
  absl::StatusOr<RankProgram> program = CompileRecipe(*recipe, inventory, budget, /*digest=*/false);
  if (program.ok()) program->left_out = static_cast<uint32_t>(all - recipe->microbatches);
  return program;
}

namespace {

// Of each unit's flat buffer, the table's padding included.
std::vector<uint64_t> UnitElements(const PartitionTable& table, const Inventory& inventory) {
  std::vector<uint64_t> elements;
  for (int u = 0; u < inventory.units_size(); ++u) {
    elements.push_back(partition::BufferElements(table, inventory, u));
  }
  return elements;
}

}  // namespace

uint64_t FixedBytes(Device device, const Layout& layout) {
  if (device != DEVICE_CUDA) return 0;
  // A context with LibTorch's and NCCL's code on an H100; CUBLAS_WORKSPACE_CONFIG=:4096:8, as the agent sets it, and as
  // much again for cuBLASLt (32 MiB on Hopper in LibTorch); NCCL's channels, by its defaults of 4 MiB a channel,
  // protocol and direction (NCCL_BUFFSIZE).
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr uint64_t kContext = 512 * kMiB, kWorkspaces = 64 * kMiB, kCommunicator = 256 * kMiB;
  const size_t world = layout.roles.size();
  const uint32_t shards = layout.table.shards();
  const uint64_t communicators = world <= 1 ? 0 : shards > 1 && shards < world ? 3 : 1;
  return kContext + kWorkspaces + communicators * kCommunicator;
}

std::vector<Memory> MemoryByShard(const Train& train, const Inventory& inventory, const Layout& layout,
                                  const RankProgram& program) {
  const Buffers buffers = BuffersOf(program, UnitElements(layout.table, inventory));
  const uint64_t sequences = MicrobatchRows(train.batch(), static_cast<uint32_t>(layout.roles.size()));
  const bool bf16 = train.precision().compute() == DTYPE_BF16, reduce_bf16 = train.precision().reduce() == DTYPE_BF16;

  Memory common;
  common.fixed = FixedBytes(inventory.device(), layout);
  common.gather_buffers = (bf16 ? 2 : 4) * buffers.gathered;
  common.reduce_buffers = 4 * buffers.waiting;
  common.activations = std::max(PeakActivationBytes(program.schedule, inventory, sequences),
                                PeakActivationBytes(program.evaluation, inventory, sequences));
  if (bf16) common.activations += models::Bf16Bytes(inventory);
  std::vector<Memory> shards;
  for (const uint64_t own : partition::OwnedElements(layout.table, inventory)) {
    Memory& memory = shards.emplace_back(common);
    // A rank that has all parameters anyway has the owned ones among them, unless it computes in another dtype.
    // BytesAnElement states the same by element.
    memory.parameters = !buffers.whole_parameters ? 4 * own : bf16 ? 2 * buffers.all + 4 * own : 4 * buffers.all;
    memory.parameters += 4 * models::Buffers(inventory);
    memory.gradients = 4 * (buffers.whole_gradients ? buffers.all : own);
    memory.optimizer_state = 4 * own * StateTensors(train.optimizer());
    // The sum over replicas of a sharded model is sent in place.
    if (reduce_bf16 && buffers.reduces) {
      memory.reduce_buffers += 2 * (buffers.whole_gradients ? buffers.all : buffers.waiting);
    }
    memory.peak = memory.fixed + memory.parameters + memory.gradients + memory.optimizer_state + memory.gather_buffers +
                  memory.reduce_buffers + memory.activations;
  }
  return shards;
}

uint64_t BytesAnElement(const Train& train, const Inventory& inventory, const Layout& layout,
                        const RankProgram& program) {
  const Buffers buffers = BuffersOf(program, UnitElements(layout.table, inventory));
  const bool own_parameters = !buffers.whole_parameters || train.precision().compute() == DTYPE_BF16;
  return (own_parameters ? 4 : 0) + (buffers.whole_gradients ? 0 : 4) + 4 * StateTensors(train.optimizer());
}

Memory MemoryOf(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                uint32_t rank) {
  return MemoryByShard(train, inventory, layout, program).at(layout.roles.at(rank).shard());
}

}  // namespace muster::strategies
