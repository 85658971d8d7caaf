#include "strategies/compile.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/ddp/ddp.h"
#include "strategies/fsdp/fsdp.h"
#include "strategies/optimizer_plan.h"
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

Offloaded OffloadedBy(const Train& train) {
  if (train.offload().parameters()) return Offloaded::kParameters;
  return train.offload().optimizer() ? Offloaded::kOptimizer : Offloaded::kNothing;
}

// One rank has nothing to reduce; its gradients wait in slots for host memory.
absl::Status Offload(const Train& train, uint32_t world, ScheduleRecipe& recipe) {
  recipe.offloaded = OffloadedBy(train);
  if (recipe.offloaded == Offloaded::kNothing) return absl::OkStatus();
  if (world == 1) recipe.gradients = Gradients::kOwned;
  if (recipe.offloaded == Offloaded::kOptimizer) return absl::OkStatus();
  if (world == 1) recipe.parameters = Parameters::kFreed;
  if (recipe.parameters == Parameters::kFreed || recipe.parameters == Parameters::kKept) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "strategy: with offload.parameters a device keeps none, and ", KindOf(train.strategy()),
      " keeps all of them; zero with stage: 3 and fsdp with reshard: full_shard do not, and offload.optimizer "
      "goes with every strategy"));
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
  recipe.even_units = partition::EvenUnits(layout.table, inventory);
  recipe.microbatches = static_cast<int32_t>(Microbatches(train.batch(), world));
  recipe.recompute = train.activation_checkpointing();
  recipe.offload_inputs = recipe.recompute && train.offload().activations();
  if (absl::Status s = Offload(train, world, recipe); !s.ok()) return s;
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
  uint64_t each = 2 + (recipe.recompute ? 1 : 0) + (recipe.offload_inputs ? 3 : 0);
  if (recipe.parameters == Parameters::kFreed) each += 4;
  if (recipe.sharded && recipe.gradients == Gradients::kOwned) each += 2;
  if (recipe.offloaded != Offloaded::kNothing) each += 2;     // gradients: opened, if not counted yet, and offloaded
  if (recipe.offloaded == Offloaded::kParameters) each += 2;  // parameters: fetched forward and backward
  const uint64_t steps = recipe.offloaded == Offloaded::kNothing ? 0 : 2;  // and fetched after it
  return units * (each * static_cast<uint64_t>(recipe.microbatches) + 4 + steps) + 3;
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
  uint64_t all = 0, trained = 0;  // all units, with the table's padding; and their trained parts
  bool whole_parameters = true;   // resident across steps, not only the owned ones
  bool whole_gradients = true;    // not only the owned ones
  uint64_t gathered = 0;          // slots that parameters are gathered or fetched into
  uint64_t waiting = 0;           // slots that gradients wait in for their reduction
  bool reduces = false;           // gradients are reduced
  bool over_replicas = false;     // also what one shard owns
  bool offloads = false;          // gradients go to host memory
  bool fetches = false;           // parameters come from there for each use
};

struct UnitSizes {
  std::vector<uint64_t> all, trained;  // elements of each unit's flat buffer, and of its trained part
};

// Evaluation uses the slots of training.
Buffers BuffersOf(const RankProgram& program, const UnitSizes& sizes) {
  const std::vector<uint64_t>& units = sizes.all;
  Buffers buffers;
  buffers.all = std::accumulate(units.begin(), units.end(), uint64_t{0});
  buffers.trained = std::accumulate(sizes.trained.begin(), sizes.trained.end(), uint64_t{0});
  const std::vector<uint64_t> slots = GatherSlots(program.schedule, units);
  buffers.gathered = std::accumulate(slots.begin(), slots.end(), uint64_t{0});
  const std::vector<uint64_t> gradients = GradientSlots(program.schedule, sizes.trained);
  buffers.waiting = std::accumulate(gradients.begin(), gradients.end(), uint64_t{0});
  buffers.whole_parameters = slots.empty();
  buffers.whole_gradients = gradients.empty();
  for (const Op& op : program.schedule.ops) {
    buffers.reduces |= ReducesGradients(op.kind);
    buffers.over_replicas |= op.kind == OpKind::kAllReduce;
    buffers.offloads |= op.kind == OpKind::kOffload;
    buffers.fetches |= op.kind == OpKind::kFetch && op.slot >= 0;
  }
  return buffers;
}

}  // namespace

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

bool KeepsAllParameters(const Strategy& strategy) {
  return strategy.has_ddp() || (strategy.has_zero() && strategy.zero().stage() < 3) ||
         (strategy.has_fsdp() && strategy.fsdp().reshard() == RESHARD_NO_SHARD);
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

// The table's padding included.
UnitSizes SizesOf(const PartitionTable& table, const Inventory& inventory) {
  UnitSizes sizes;
  for (int u = 0; u < inventory.units_size(); ++u) {
    sizes.all.push_back(partition::BufferElements(table, inventory, u));
    const Unit& unit = inventory.units(u);
    sizes.trained.push_back(partition::HasFrozen(unit) ? partition::TrainedElements(unit) : sizes.all.back());
  }
  return sizes;
}

}  // namespace

Dtype StoredDtype(const Train& train, bool frozen) {
  if (!frozen) return train.precision().params() == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_FP32;
  return train.precision().compute() == DTYPE_BF16 ? DTYPE_BF16 : DTYPE_FP32;
}

uint64_t DtypeBytes(Dtype dtype) { return dtype == DTYPE_BF16 || dtype == DTYPE_FP16 ? 2 : 4; }

uint64_t FixedBytes(const Inventory& inventory, const Layout& layout) {
  if (inventory.device() != DEVICE_CUDA) return 0;
  // A context with LibTorch's and NCCL's code on an H100; CUBLAS_WORKSPACE_CONFIG=:4096:8, as the agent sets it, and as
  // much again for cuBLASLt (32 MiB on Hopper in LibTorch); NCCL's channels, by its defaults of 4 MiB a channel,
  // protocol and direction (NCCL_BUFFSIZE).
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr uint64_t kContext = 512 * kMiB, kWorkspaces = 64 * kMiB, kCommunicator = 256 * kMiB;
  const size_t world = layout.roles.size();
  const uint32_t shards = layout.table.shards();
  const bool exchanges = std::any_of(inventory.units().begin(), inventory.units().end(),
                                     [](const Unit& unit) { return unit.has_exchange(); });
  const uint64_t communicators = world <= 1 ? 0 : (shards > 1 && shards < world ? 3 : 1) + (exchanges ? 1 : 0);
  return kContext + kWorkspaces + communicators * kCommunicator;
}

std::vector<Memory> MemoryByShard(const Train& train, const Inventory& inventory, const Layout& layout,
                                  const RankProgram& program) {
  const Buffers buffers = BuffersOf(program, SizesOf(layout.table, inventory));
  const uint64_t sequences = MicrobatchRows(train.batch(), static_cast<uint32_t>(layout.roles.size()));
  const uint64_t width = DtypeBytes(train.precision().compute()), master = DtypeBytes(StoredDtype(train, false)),
                 frozen_bytes = DtypeBytes(StoredDtype(train, true));
  const bool narrow_reduce = DtypeBytes(train.precision().reduce()) < 4;

  Memory common;
  common.fixed = FixedBytes(inventory, layout);
  common.gather_buffers = width * buffers.gathered;
  common.reduce_buffers = 4 * buffers.waiting;
  common.activations = std::max(PeakActivationBytes(program.schedule, inventory, sequences),
                                PeakActivationBytes(program.evaluation, inventory, sequences));
  if (width < 4) common.activations += models::NarrowBytes(inventory);
  const bool updates_on_host = inventory.device() == DEVICE_CUDA && train.offload().optimizer();
  if (!updates_on_host) common.activations = std::max(common.activations, UpdateBytes(train, inventory));
  const auto input_slots = [&](SlotPool pool) {
    const std::vector<uint64_t> slots = InputSlots(program.schedule, pool, inventory, sequences);
    return std::accumulate(slots.begin(), slots.end(), uint64_t{0});
  };
  common.activations += input_slots(SlotPool::kInputs);
  common.host = input_slots(SlotPool::kHostInputs) + (updates_on_host ? UpdateBytes(train, inventory) : 0);
  std::vector<Memory> shards;
  const std::vector<uint64_t> owned = partition::OwnedElements(layout.table, inventory),
                              owned_trained = partition::TrainedElements(layout.table, inventory),
                              state = StateBytes(train.optimizer(), inventory, layout.table);
  for (size_t shard = 0; shard < owned.size(); ++shard) {
    const uint64_t own = owned[shard], trained = owned_trained[shard];
    Memory& memory = shards.emplace_back(common);
    // A rank that has all parameters anyway has the owned ones among them, unless it computes in another dtype.
    // BytesAnElement states the same by element.
    const uint64_t frozen = own - trained, kept = master * trained + frozen_bytes * frozen;
    if (buffers.offloads) {
      memory.parameters = width * (buffers.whole_parameters ? buffers.all : buffers.fetches ? 0 : own);
      memory.gradients = 4 * (buffers.whole_gradients ? buffers.trained : buffers.over_replicas ? trained : 0);
      const uint64_t copies = (master == width ? 0 : width * trained) + (frozen_bytes == width ? 0 : width * frozen);
      memory.host += kept + copies + 4 * trained + state[shard];
    } else {
      const uint64_t beside =
          (master == width ? 0 : master * trained) + (frozen_bytes == width ? 0 : frozen_bytes * frozen);
      memory.parameters = buffers.whole_parameters ? width * buffers.all + beside : kept;
      memory.gradients = 4 * (buffers.whole_gradients ? buffers.trained : trained);
      memory.optimizer_state = state[shard];
    }
    memory.parameters += 4 * models::Buffers(inventory);
    // The sum over replicas of a sharded model is sent in place.
    if (narrow_reduce && buffers.reduces) {
      memory.reduce_buffers += 2 * (buffers.whole_gradients ? buffers.trained : buffers.waiting);
    }
    memory.peak = memory.fixed + memory.parameters + memory.gradients + memory.optimizer_state + memory.gather_buffers +
                  memory.reduce_buffers + memory.activations;
    if (inventory.device() != DEVICE_CUDA && train.offload().to().empty()) memory.peak += memory.host;
  }
  return shards;
}

uint64_t BytesAnElement(const Train& train, const Inventory& inventory, const Layout& layout,
                        const RankProgram& program) {
  const Buffers buffers = BuffersOf(program, SizesOf(layout.table, inventory));
  const uint64_t width = DtypeBytes(train.precision().compute());
  if (buffers.offloads && inventory.device() == DEVICE_CUDA) {
    return (buffers.whole_parameters || buffers.fetches ? 0 : width) +
           (buffers.whole_gradients || !buffers.over_replicas ? 0 : 4);
  }
  const bool whole = buffers.whole_parameters && !buffers.offloads;
  // What is computed with is stored once.
  const auto stored = [&](bool frozen) {
    const uint64_t bytes = DtypeBytes(StoredDtype(train, frozen));
    return whole && bytes == width ? 0 : bytes;
  };
  const uint64_t master = stored(false), frozen = stored(true);
  const uint64_t trained = master + (buffers.whole_gradients ? 0 : 4) + 4 * MostStateAnElement(train.optimizer());
  // Where some is frozen: of an average element, which is what shares are made of.
  if (buffers.all == 0) return master;
  return (trained * buffers.trained + frozen * (buffers.all - buffers.trained)) / buffers.all;
}

Memory MemoryOf(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                uint32_t rank) {
  return MemoryByShard(train, inventory, layout, program).at(layout.roles.at(rank).shard());
}

}  // namespace muster::strategies
