#include "strategies/compile.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/sha256.h"
#include "models/inventory.h"
#include "strategies/compression.h"
#include "strategies/ddp/ddp.h"
#include "strategies/fsdp/fsdp.h"
#include "strategies/optimizer_plan.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/planners.h"
#include "strategies/partition/table.h"
#include "strategies/pipeline/orders.h"
#include "strategies/pipeline/stages.h"
#include "strategies/schedule/build.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/check_stages.h"
#include "strategies/schedule/memory.h"
#include "strategies/single/single.h"
#include "strategies/zero/zero.h"

namespace muster::strategies {
namespace {

// So much larger are buckets by default whose sums travel compressed: what is sent of them is small, and each one costs
// ranks a wait for each other.
constexpr uint64_t kCompressedBucket = 4;

absl::Status NotYet(const Strategy& strategy) {
  return absl::UnimplementedError(
      absl::StrCat("strategy: ", KindOf(strategy), " is not in this build yet; supported: single, ddp, zero, fsdp"));
}

// Of a stage's units on its ranks.
absl::StatusOr<PartitionTable> TableOf(const Train& train, const Inventory& inventory,
                                       absl::Span<const RankPlace> ranks) {
  const Strategy& strategy = train.strategy();
  switch (strategy.kind_case()) {
    case Strategy::kSingle:
      if (ranks.size() == 1) return single::TableOf(inventory);
      return absl::InvalidArgumentError(
          absl::StrCat("strategy: single runs on one rank", train.parallel().pipeline() > 1 ? " a stage" : "",
                       ", resources.ranks gives ", ranks.size(), "; ddp and fsdp run on several"));
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

// Of axes with two levels: their groups, at the end of the list.
void AddLevels(const Mesh& mesh, ScheduleRecipe& recipe) {
  for (const GroupSpec& group : LevelGroups(mesh)) {
    const auto number = static_cast<int32_t>(recipe.groups.size());
    Levels& levels = (group.axes & kShardAxis) != 0 ? recipe.shard_levels : recipe.replica_levels;
    (group.channel == Channel::kSums ? levels.sums
     : IsBetweenNodes(group.axes)    ? levels.between
                                     : levels.inside) = number;
    recipe.groups.push_back(group);
  }
}

// Of a stage's ranks. A step has `microbatches`, or the spec's number.
absl::StatusOr<ScheduleRecipe> RecipeOf(const Train& train, const Inventory& whole, const StageModel& model,
                                        const Layout& layout, uint32_t stage,
                                        std::optional<uint32_t> microbatches = std::nullopt) {
  const uint32_t shards = layout.mesh.shard, ranks = layout.mesh.data_ranks();
  const Inventory& inventory = model.inventory();
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
      recipe = fsdp::RecipeOf(strategy.fsdp(), inventory, shards, ranks);
      break;
    default:
      return NotYet(strategy);
  }
  if (ranks == 1) recipe = single::RecipeOf();
  // The same ops for all shares of its tensors.
  recipe.even_units = partition::EvenUnits(model.table(), inventory);
  for (uint32_t tensor = 1; tensor < layout.mesh.tensor; ++tensor) {
    const StageModel other(whole, layout, stage, tensor);
    const std::vector<bool> even = partition::EvenUnits(other.table(), other.inventory());
    for (size_t u = 0; u < even.size(); ++u) recipe.even_units[u] = recipe.even_units[u] && even[u];
  }
  recipe.microbatches =
      static_cast<int32_t>(microbatches.value_or(Microbatches(train.batch(), layout.mesh.sample_ranks())));
  recipe.recompute = train.activation_checkpointing();
  recipe.offload_inputs = recipe.recompute && train.offload().activations();
  if (layout.mesh.pipeline > 1) {
    pipeline::StageEdges edges = pipeline::EdgesOf(whole, pipeline::StagesOf(layout.table), stage);
    recipe.order = pipeline::OrderOf(train.pipeline().schedule(),
                                     {.stages = layout.mesh.pipeline,
                                      .chunks = static_cast<uint32_t>(edges.of_chunk.size()),
                                      .microbatches = static_cast<uint32_t>(recipe.microbatches)},
                                     stage);
    recipe.groups = std::move(edges.groups), recipe.edges = std::move(edges.of_chunk);
    recipe.tied = std::move(edges.of_tied);
  }
  AddLevels(layout.mesh, recipe);
  recipe.two_exchanges = recipe.replicated && HasSecondExchange(train.communication().compression());
  const bool compressed = recipe.replicated && Compresses(train.communication());
  if (compressed && strategy.has_ddp() && !strategy.ddp().has_bucket_mib()) recipe.reduce_bytes *= kCompressedBucket;
  if (absl::Status s = Offload(train, ranks, recipe); !s.ok()) return s;
  return recipe;
}

// Work and bytes for each of the things that are counted before they are made.
constexpr uint64_t kWorkPerOp = 16;       // emitted, checked, walked
constexpr uint64_t kWorkPerDigested = 8;  // an op's text, hashed
constexpr uint64_t kWorkPerProven = 10;   // matched with the other stages' ops and played with them
constexpr uint64_t kBytesPerOp = sizeof(Op) + 24;
constexpr uint64_t kBytesPerProven = 24;  // its place in its stream and in its group
constexpr uint64_t kWorkPerCut = 1;       // of a unit: planned, checked, summed up, serialized
constexpr uint64_t kBytesPerCut = 8;      // as boundaries
// Of a part of the model: made, cut, checked, summed up for its memory.
constexpr uint64_t kWorkPerPartTensor = 100;
constexpr uint64_t kBytesPerPartTensor = 400;

// Most ops that a schedule of that recipe has: all that may come for a unit and a microbatch, and once a step.
uint64_t MostOps(const ScheduleRecipe& recipe, uint64_t units) {
  const uint64_t levels = recipe.shard_levels.any() ? 1 : 0;
  uint64_t each = 2 + (recipe.recompute ? 1 : 0) + (recipe.offload_inputs ? 3 : 0);
  each += recipe.edges.empty() ? 0 : 1;  // a pipeline's backward may be in two
  if (recipe.parameters == Parameters::kFreed) each += 4 + 2 * levels;
  if (recipe.sharded && recipe.gradients == Gradients::kOwned) each += 2 + levels;
  if (recipe.offloaded != Offloaded::kNothing) each += 2;     // gradients: opened, if not counted yet, and offloaded
  if (recipe.offloaded == Offloaded::kParameters) each += 2;  // parameters: fetched forward and backward
  const uint64_t steps = (recipe.offloaded == Offloaded::kNothing ? 0 : 2) +  // and fetched after it
                         2 * levels + (recipe.replica_levels.any() ? 2 : 0) + (recipe.two_exchanges ? 1 : 0);
  const uint64_t edges = 4 * recipe.edges.size();  // received and sent, forward and backward
  return (units * each + edges) * static_cast<uint64_t>(recipe.microbatches) + units * (4 + steps) + 3 +
         2 * recipe.tied.size();
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
  const uint64_t shares = models::TensorRanks(inventory), shards = sharded ? ranks : 1, tensors = Tensors(inventory),
                 units = static_cast<uint64_t>(inventory.units_size());
  // It ends when it is too large to be handed out, and each cut takes a byte at least.
  const uint64_t cuts = std::min<uint64_t>(kMaxTableBytes, units * std::max(shards, shares));
  const auto what = [&] {
    return absl::StrCat("a partition table of ", units, " units on ", ranks,
                        " ranks; use fewer ranks, or strategy.placement: even");
  };
  // Stages and shares are models of their own.
  const uint64_t parts = train.parallel().pipeline() > 1 || shares > 1 ? shares * tensors : 0;
  absl::Status status = Spend(
      budget,
      16 * tensors + kWorkPerPartTensor * parts + kWorkPerCut * cuts + (searched ? cuts * tensors / units / 4 : 0),
      what);
  return status.ok() ? Hold(budget, kBytesPerCut * cuts + kBytesPerPartTensor * parts, what) : status;
}

// `held`: bytes of the programs of other stages.
absl::StatusOr<RankProgram> CompileRecipe(const ScheduleRecipe& recipe, const Inventory& inventory, Budget* budget,
                                          bool digest, uint64_t held = 0) {
  const uint64_t units = static_cast<uint64_t>(inventory.units_size());
  const uint64_t ops = MostOps(recipe, units);
  const auto what = [&] {
    return absl::StrCat("a schedule of ", recipe.microbatches, " microbatches of ", units, " units, up to ", ops,
                        " ops; raise batch.microbatch");
  };
  absl::Status status = Spend(budget, ops * (kWorkPerOp + (digest ? kWorkPerDigested : 0)), what);
  const uint64_t bytes = kBytesPerOp + (recipe.edges.empty() ? 0 : kStreams * sizeof(int32_t));
  if (status.ok()) status = Hold(budget, held + ops * bytes, what);
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
    buffers.fetches |= op.kind == OpKind::kFetch && op.slot >= 0;
  }
  return buffers;
}

// The inventories of all parts, as Layout has them: each share is made once, and then cut into its stages. REQUIRES:
// there are several.
std::vector<ModelPart> PartsOf(const Inventory& inventory, const pipeline::StageOfUnit& stages) {
  const Mesh mesh{.pipeline = pipeline::Stages(stages), .tensor = models::TensorRanks(inventory)};
  std::vector<ModelPart> parts(mesh.parts());
  for (uint32_t share = 0; share < mesh.tensor; ++share) {
    const Inventory divided = mesh.tensor > 1 ? models::ShareOf(inventory, share) : Inventory();
    const Inventory& own = mesh.tensor > 1 ? divided : inventory;
    for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
      Inventory& of = parts[PartAt(mesh, {.pipeline = stage, .tensor = share})].inventory;
      of = mesh.pipeline > 1 ? pipeline::StageInventory(own, stages, stage) : own;
    }
  }
  return parts;
}

// REQUIRES: `table` is joined of the parts' tables.
absl::StatusOr<Layout> LayoutOf(PartitionTable table, const Inventory& inventory, uint32_t world,
                                std::vector<ModelPart> parts) {
  const pipeline::StageOfUnit stages = pipeline::StagesOf(table);
  if (absl::Status s = pipeline::CheckCut(inventory, stages); !s.ok()) return s;
  if (absl::Status s = pipeline::CheckTies(inventory, stages); !s.ok()) return s;
  if (world % table.shards() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a table of ", table.shards(), " shards, and ", world, " ranks are not a multiple of that"));
  }
  Layout layout;
  layout.mesh = WithReplicasFor(partition::MeshOf(table), world);
  layout.mesh.context = models::ContextRanks(inventory);
  if (layout.mesh.data_ranks() % layout.mesh.context != 0) {
    const bool several = layout.mesh.parts() > 1;
    return absl::InvalidArgumentError(absl::StrCat(
        "parallel.context: ", layout.mesh.context, " ranks for each sequence do not divide ", layout.mesh.data_ranks(),
        " data-parallel ranks", several ? " of a stage and a share of its tensors" : ""));
  }
  const Mesh levels = WithLevels(layout.mesh, table.ranks_on_node());
  if (table.ranks_on_node() > 0 && LevelGroups(levels).empty()) table.clear_ranks_on_node();
  if (table.ranks_on_node() > 0) layout.mesh = levels;
  for (uint32_t rank = 0; rank < world; ++rank) {
    const Coordinate at = CoordinateOf(layout.mesh, rank);
    RankRole& role = layout.roles.emplace_back();
    role.set_rank(rank);
    role.set_shard(OwnerAt(layout.mesh, at));
    role.set_replica(at.replica);
    role.set_stage(at.pipeline);
    role.set_tensor(at.tensor);
    role.set_shard_in_stage(at.shard);
    role.set_context(ContextRankAt(layout.mesh, at));
  }
  layout.table_sha256 = partition::TableSha256(table);
  layout.table = std::move(table);
  if (!parts.empty()) layout.parts = std::make_shared<const std::vector<ModelPart>>(std::move(parts));
  return layout;
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
    case Strategy::kAuto:
      return "auto";
    case Strategy::KIND_NOT_SET:
      return "none";
  }
  return "unknown";
}

std::vector<RankPlace> AnyPlaces(uint32_t world) { return std::vector<RankPlace>(world); }

Share ShareOf(uint64_t sequences, uint32_t sharers, uint32_t index) {
  const uint64_t each = sequences / sharers, left = sequences % sharers;
  return {index * each + std::min<uint64_t>(index, left), each + (index < left ? 1 : 0)};
}

Share ShareOf(uint64_t sequences, const Mesh& mesh, uint32_t rank) {
  return ShareOf(sequences, mesh.sample_ranks(), SampleRankAt(mesh, CoordinateOf(mesh, rank)));
}

uint32_t MicrobatchRows(const Batch& batch, uint32_t sample_ranks) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), sample_ranks, 0).sequences);
  return batch.microbatch() > 0 ? std::min(share, batch.microbatch()) : share;
}

uint32_t Microbatches(const Batch& batch, uint32_t sample_ranks) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), sample_ranks, 0).sequences);
  const uint32_t rows = std::max(1u, MicrobatchRows(batch, sample_ranks));
  return std::max(1u, (share + rows - 1) / rows);
}

uint32_t ShardInStage(const Layout& layout, uint32_t rank) { return CoordinateOf(layout.mesh, rank).shard; }

absl::StatusOr<Layout> LayoutOf(PartitionTable table, const Inventory& inventory, uint32_t world) {
  if (absl::Status s = partition::Check(table, inventory); !s.ok()) return s;
  std::vector<ModelPart> parts;
  if (const Mesh mesh = partition::MeshOf(table); mesh.parts() > 1) {
    parts = PartsOf(inventory, pipeline::StagesOf(table));
    for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
      for (uint32_t tensor = 0; tensor < mesh.tensor; ++tensor) {
        const Coordinate at{.pipeline = stage, .tensor = tensor};
        parts[PartAt(mesh, at)].table = partition::TableOf(table, stage, tensor);
      }
    }
  }
  return LayoutOf(std::move(table), inventory, world, std::move(parts));
}

bool KeepsAllParameters(const Strategy& strategy) {
  return strategy.has_ddp() || (strategy.has_zero() && strategy.zero().stage() < 3) ||
         (strategy.has_fsdp() && strategy.fsdp().reshard() == RESHARD_NO_SHARD);
}

bool SharesBySpeed(const Strategy& strategy) {
  return (strategy.zero().placement() == PLACEMENT_RAGGED && strategy.zero().shares() == SHARES_SPEED) ||
         (strategy.fsdp().placement() == PLACEMENT_RAGGED && strategy.fsdp().shares() == SHARES_SPEED);
}

namespace {

// A table for the ranks of each of `parts`, which are numbered by PartAt. And what the owners' parts are in proportion
// to, by owner. `mesh` is of replicas.
struct PartTables {
  std::vector<PartitionTable> tables;
  std::vector<uint64_t> weights;
};
absl::StatusOr<PartTables> MakeTables(const Train& train, absl::Span<const RankPlace> ranks, const Mesh& mesh,
                                      absl::Span<const Inventory* const> parts) {
  PartTables made;
  for (const std::vector<uint32_t>& group : GroupsOf(mesh, {.axes = kDataAxes})) {
    const Coordinate first = CoordinateOf(mesh, group[0]);
    const size_t part = PartAt(mesh, first);
    std::vector<RankPlace> its_ranks;
    for (const uint32_t rank : group) its_ranks.push_back(ranks[rank]);
    absl::StatusOr<PartitionTable> table = TableOf(train, *parts[part], its_ranks);
    if (!table.ok()) return table.status();
    if (part > 0 && table->shards() != made.tables[0].shards()) {
      return absl::InvalidArgumentError(
          absl::StrCat("strategy: stage 0 has ", made.tables[0].shards(), " shards on its ranks, and stage ",
                       first.pipeline, " ", table->shards(), "; strategy.shard_ranks says how many share one copy"));
    }
    const std::vector<uint64_t> weights =
        partition::Weights(its_ranks, table->shards(), SharesBySpeed(train.strategy()) ? SHARES_SPEED : SHARES_MEMORY,
                           partition::FlatElements(*parts[part]));
    const Mesh owners{.pipeline = mesh.pipeline, .shard = table->shards(), .tensor = mesh.tensor};
    made.weights.resize(owners.owners());
    for (Coordinate at = first; at.shard < owners.shard; ++at.shard) {
      made.weights[OwnerAt(owners, at)] = weights[at.shard];
    }
    made.tables.push_back(*std::move(table));
  }
  return made;
}

}  // namespace

std::vector<pipeline::ChunkPlace> StagePlaces(const Train& train, absl::Span<const RankPlace> ranks) {
  const Mesh mesh =
      WithReplicasFor({.pipeline = std::max(1u, train.parallel().pipeline())}, static_cast<uint32_t>(ranks.size()));
  std::vector<pipeline::ChunkPlace> places(mesh.pipeline);
  double sum = 0, known = 0;
  for (const RankPlace& rank : ranks) sum += rank.flops_per_second, known += rank.flops_per_second > 0 ? 1 : 0;
  if (!SharesBySpeed(train.strategy()) || known == 0) return places;
  for (uint32_t stage = 0; stage < mesh.pipeline; ++stage) {
    places[stage].speed = std::numeric_limits<double>::infinity();
    for (const RankPlace& rank : OfStage(mesh, ranks, stage)) {
      const double speed = rank.flops_per_second > 0 ? rank.flops_per_second : sum / known;
      places[stage].speed = std::min(places[stage].speed, speed);
    }
  }
  return places;
}

uint32_t RanksOnEachNode(absl::Span<const RankPlace> ranks) {
  std::vector<uint32_t> counts;  // by run of neighbors on one node
  std::set<uint32_t> nodes;
  for (size_t r = 0; r < ranks.size(); ++r) {
    if (r == 0 || ranks[r].node != ranks[r - 1].node) {
      if (!nodes.insert(ranks[r].node).second) return 0;
      counts.push_back(0);
    }
    ++counts.back();
  }
  const bool equal = std::all_of(counts.begin(), counts.end(), [&](uint32_t count) { return count == counts[0]; });
  return equal && counts.size() > 1 ? counts[0] : 0;
}

absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                                  Budget* budget, absl::Span<const pipeline::ChunkPlace> places) {
  const uint32_t pipeline = std::max(1u, train.parallel().pipeline()), tensor = models::TensorRanks(inventory);
  if (ranks.size() % pipeline != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("parallel.pipeline: ", pipeline, " stages do not divide ", ranks.size(), " ranks"));
  }
  if (ranks.size() % (uint64_t{pipeline} * tensor) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("parallel.tensor: ", tensor, " ranks for each unit do not divide ",
                                                   ranks.size() / pipeline,
                                                   pipeline > 1 ? " ranks of a stage" : " ranks"));
  }
  if (absl::Status s = SpendOnTable(train, inventory, ranks.size(), budget); !s.ok()) return s;
  const std::vector<pipeline::ChunkPlace> by_speed = StagePlaces(train, ranks);
  const absl::StatusOr<pipeline::StageOfUnit> stages =
      pipeline::StagesOf(train, inventory, places.empty() ? by_speed : places, budget);
  if (!stages.ok()) return stages.status();
  const Mesh mesh = WithReplicasFor({.pipeline = pipeline, .tensor = tensor}, static_cast<uint32_t>(ranks.size()));
  std::vector<ModelPart> parts;
  std::vector<const Inventory*> inventories = {&inventory};
  if (mesh.parts() > 1) {
    parts = PartsOf(inventory, *stages);
    inventories.clear();
    for (const ModelPart& part : parts) inventories.push_back(&part.inventory);
  }
  absl::StatusOr<PartTables> made = MakeTables(train, ranks, mesh, inventories);
  if (!made.ok()) return made.status();
  size_t bytes = 0;
  for (const PartitionTable& table : made->tables) bytes += table.ByteSizeLong();
  if (bytes > kMaxTableBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "strategy: on ", ranks.size(), " ranks its partition table takes more than ", FormatBytes(kMaxTableBytes),
        ", the most that can be handed out; of the placements, even has the "
        "smallest tables; use that, fewer ranks, or a model of fewer layers"));
  }
  for (size_t part = 0; part < inventories.size(); ++part) {
    if (absl::Status s = partition::Check(made->tables[part], *inventories[part]); !s.ok()) return s;
  }
  PartitionTable table = parts.empty() ? std::move(made->tables[0]) : pipeline::Join(made->tables, *stages, tensor);
  for (size_t part = 0; part < parts.size(); ++part) parts[part].table = std::move(made->tables[part]);
  if (train.communication().hierarchy() == HIERARCHY_ALWAYS) table.set_ranks_on_node(RanksOnEachNode(ranks));
  absl::StatusOr<Layout> layout =
      LayoutOf(std::move(table), inventory, static_cast<uint32_t>(ranks.size()), std::move(parts));
  if (layout.ok()) layout->weights = std::move(made->weights);
  return layout;
}

absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout, uint32_t rank,
                                    Budget* budget) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  if (rank >= world) return absl::InvalidArgumentError(absl::StrCat("strategy: rank ", rank, " of ", world));
  const uint32_t stage = layout.roles[rank].stage();
  const StageModel model(inventory, layout, stage);
  const absl::StatusOr<ScheduleRecipe> recipe = RecipeOf(train, inventory, model, layout, stage);
  if (!recipe.ok()) return recipe.status();
  return CompileRecipe(*recipe, model.inventory(), budget, /*digest=*/true);
}

std::string DigestOf(const RankProgram& program) {
  return Sha256Hex(absl::StrCat(Digest(program.schedule), Digest(program.evaluation)));
}

namespace {

// So many show how a step begins, goes on and ends, whatever is gathered ahead. Those of a pipeline pass it in groups
// of as many as it has stages, so whole groups are left out. By GPipe a stage keeps all of them at the same time, so
// none is.
uint32_t OutlinedMicrobatches(const Train& train, const Inventory& inventory, const Mesh& mesh) {
  constexpr uint32_t kLeast = 6, kUnitMicrobatches = 8000;
  const uint32_t all = Microbatches(train.batch(), mesh.sample_ranks());
  if (mesh.pipeline > 1 && train.pipeline().schedule() == PIPELINE_SCHEDULE_GPIPE) return all;
  const uint32_t least = mesh.pipeline == 1 ? kLeast : 4 * mesh.pipeline * std::max(1u, train.pipeline().chunks());
  const uint32_t some =
      std::min(all, std::max(least, kUnitMicrobatches / static_cast<uint32_t>(inventory.units_size())));
  return some + (all - some) % mesh.pipeline;
}

// The gradient of the model's first unit is complete last. That of another one may be awaited from a stage that cannot
// end before this one.
absl::Status InvalidForTies(const std::vector<StageModel>& models, absl::Status status) {
  const std::string& first = models[0].inventory().units(0).name();
  for (const StageModel& model : models) {
    for (const TiedTensor& tied : model.inventory().tied()) {
      if (tied.owner() == first) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "parallel.pipeline: stages would wait for each other, because unit ", tied.user(), " on stage ",
          tied.user_stage(), " borrows ", tied.tensor().name(), " of unit ", tied.owner(), " on stage ",
          tied.owner_stage(), "; use pipeline.schedule 1f1b or gpipe, another pipeline.cut, or no pipeline"));
    }
  }
  return status;
}

// `held`: bytes of the programs.
absl::Status CheckTogether(const std::vector<RankProgram>& programs, const std::vector<StageModel>& models,
                           uint64_t held, Budget* budget) {
  if (programs.size() < 2) return absl::OkStatus();
  uint64_t ops = 0;
  for (const RankProgram& program : programs) ops += program.schedule.ops.size() + program.evaluation.ops.size();
  const auto what = [&] {
    return absl::StrCat("schedules of ", programs.size(), " stages, ", ops, " ops; raise batch.microbatch");
  };
  absl::Status status = Spend(budget, ops * kWorkPerProven, what);
  if (status.ok()) status = Hold(budget, held + ops * kBytesPerProven, what);
  if (!status.ok()) return status;
  std::vector<StageSchedule> training, evaluation;
  for (size_t stage = 0; stage < programs.size(); ++stage) {
    training.push_back({&programs[stage].schedule, &models[stage].inventory()});
    evaluation.push_back({&programs[stage].evaluation, &models[stage].inventory()});
  }
  status = CheckStages(training);
  if (status.ok()) status = CheckStages(evaluation);
  return status.ok() ? status : InvalidForTies(models, std::move(status));
}

// By stage. A step has `microbatches`, or the spec's number.
absl::StatusOr<std::vector<RankProgram>> CompileTogether(const Train& train, const Inventory& inventory,
                                                         const Layout& layout, std::optional<uint32_t> microbatches,
                                                         bool digest, Budget* budget) {
  std::vector<RankProgram> programs;
  std::vector<StageModel> models;
  uint64_t held = 0;
  for (uint32_t stage = 0; stage < layout.mesh.pipeline; ++stage) {
    models.emplace_back(inventory, layout, stage);
    const absl::StatusOr<ScheduleRecipe> recipe =
        RecipeOf(train, inventory, models.back(), layout, stage, microbatches);
    if (!recipe.ok()) return recipe.status();
    absl::StatusOr<RankProgram> program = CompileRecipe(*recipe, models.back().inventory(), budget, digest, held);
    if (!program.ok()) return program.status();
    held += sizeof(Op) * (program->schedule.ops.capacity() + program->evaluation.ops.capacity());
    programs.push_back(*std::move(program));
  }
  if (absl::Status s = CheckTogether(programs, models, held, budget); !s.ok()) return s;
  return programs;
}

}  // namespace

absl::StatusOr<std::vector<RankProgram>> Outline(const Train& train, const Inventory& inventory, const Layout& layout,
                                                 Budget* budget) {
  const uint32_t all = Microbatches(train.batch(), layout.mesh.sample_ranks()),
                 some = OutlinedMicrobatches(train, inventory, layout.mesh);
  absl::StatusOr<std::vector<RankProgram>> programs =
      CompileTogether(train, inventory, layout, some, /*digest=*/false, budget);
  if (!programs.ok()) return programs;
  for (RankProgram& program : *programs) program.left_out = all - some;
  return programs;
}

absl::StatusOr<std::vector<RankProgram>> CompileStages(const Train& train, const Inventory& inventory,
                                                       const Layout& layout, Budget* budget) {
  return CompileTogether(train, inventory, layout, std::nullopt, /*digest=*/true, budget);
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

bool ScalesLoss(const Train& train) {
  return train.precision().compute() == DTYPE_FP16 || train.precision().reduce() == DTYPE_FP16;
}

bool MaySkipSteps(const Train& train) { return train.on_nonfinite().skip().steps() > 0 || ScalesLoss(train); }

uint64_t DtypeBytes(Dtype dtype) { return dtype == DTYPE_BF16 || dtype == DTYPE_FP16 ? 2 : 4; }

uint64_t FixedBytes(const Inventory& inventory, const Mesh& mesh, const Schedule& schedule) {
  if (inventory.device() != DEVICE_CUDA) return 0;
  // A context with LibTorch's and NCCL's code on an H100; CUBLAS_WORKSPACE_CONFIG=:4096:8, as the agent sets it, and as
  // much again for cuBLASLt (32 MiB on Hopper in LibTorch); NCCL's channels, by its defaults of 4 MiB a channel,
  // protocol and direction (NCCL_BUFFSIZE).
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  constexpr uint64_t kContext = 512 * kMiB, kWorkspaces = 64 * kMiB, kCommunicator = 256 * kMiB;
  const bool exchanges = std::any_of(inventory.units().begin(), inventory.units().end(),
                                     [](const Unit& unit) { return unit.has_exchange(); });
  // The kinds of groups of more than one rank that need a communicator each, and the stage's own edges.
  const std::vector<GroupSpec>& groups = schedule.groups;
  uint64_t communicators = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (g == kContextTensorGroup) continue;  // no collective is issued in it
    const bool used = groups[g].is_edge() || ((groups[g].channel != Channel::kExchange || exchanges) &&
                                              MembershipOf(mesh, groups[g], 0)->size > 1);
    const bool shared = std::any_of(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(g),
                                    [&](const GroupSpec& other) { return ShareMembers(mesh, other, groups[g]); });
    communicators += used && !shared ? 1 : 0;
  }
  return kContext + kWorkspaces + communicators * kCommunicator;
}

namespace {

// By shard: what compressed sums over replicas keep, of each range of gradients that is summed. Each has its own
// messages, with their padding.
std::vector<uint64_t> KeptByShard(const Compression& compression, const StageModel& model, const Mesh& mesh,
                                  const Schedule& schedule) {
  std::vector<uint64_t> most(model.table().shards());
  for (uint32_t place = 0; place < mesh.replicas_inside; ++place) {
    std::vector<uint64_t> kept(most.size());
    for (const Op& op : schedule.ops) {
      if (op.kind != OpKind::kAllReduce) continue;
      const auto ranges = SummedRanges(model.table(), model.inventory(), op, mesh.replicas_inside, place);
      for (size_t shard = 0; shard < kept.size(); ++shard) {
        for (const SummedRange& range : ranges[shard]) {
          kept[shard] += KeptBytes(compression, range.elements, range.parts, mesh.replicas_between());
        }
      }
    }
    std::transform(most.begin(), most.end(), kept.begin(), most.begin(),
                   [](uint64_t a, uint64_t b) { return std::max(a, b); });
  }
  return most;
}

// Of the shards of one stage and share.
std::vector<Memory> MemoryOfStage(const Train& train, const Inventory& whole, const Layout& layout,
                                  const StageModel& model, const RankProgram& program) {
  const Inventory& inventory = model.inventory();
  const PartitionTable& table = model.table();
  const UnitSizes sizes = SizesOf(table, inventory);
  const Buffers buffers = BuffersOf(program, sizes);
  const uint64_t sequences = MicrobatchRows(train.batch(), layout.mesh.sample_ranks());
  const uint64_t width = DtypeBytes(train.precision().compute()), master = DtypeBytes(StoredDtype(train, false)),
                 frozen_bytes = DtypeBytes(StoredDtype(train, true));
  const bool narrow_reduce = DtypeBytes(train.precision().reduce()) < 4;

  Memory common;
  common.fixed = FixedBytes(whole, layout.mesh, program.schedule);
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
  std::vector<uint64_t> received = ActivationSlots(program.schedule, inventory, sequences);
  const std::vector<uint64_t> evaluated = ActivationSlots(program.evaluation, inventory, sequences);
  received.resize(std::max(received.size(), evaluated.size()));
  for (size_t slot = 0; slot < evaluated.size(); ++slot) received[slot] = std::max(received[slot], evaluated[slot]);
  common.activations += std::accumulate(received.begin(), received.end(), uint64_t{0});
  // What is tied is whole where it is borrowed, and so is its gradient on both sides.
  for (const TiedTensor& tied : inventory.tied()) {
    const uint64_t elements = models::Elements(tied.tensor());
    const bool borrowed = std::any_of(inventory.units().begin(), inventory.units().end(),
                                      [&](const Unit& unit) { return unit.name() == tied.user(); });
    if (borrowed) common.gather_buffers += width * elements;
    if (!tied.tensor().frozen()) common.reduce_buffers += 4 * elements;
  }
  std::vector<Memory> shards;
  const std::vector<uint64_t> owned = partition::OwnedElements(table, inventory),
                              owned_trained = partition::TrainedElements(table, inventory),
                              state = StateBytes(AppliedOptimizer(train, buffers.over_replicas), inventory, table);
  std::vector<uint64_t> kept_sums;
  if (buffers.over_replicas && Compresses(train.communication())) {
    kept_sums = KeptByShard(train.communication().compression(), model, layout.mesh, program.schedule);
  }
  for (size_t shard = 0; shard < owned.size(); ++shard) {
    const uint64_t own = owned[shard], trained = owned_trained[shard];
    Memory& memory = shards.emplace_back(common);
    // A rank that has all parameters anyway has the owned ones among them, unless it computes in another dtype.
    // BytesAnElement states the same by element.
    const uint64_t frozen = own - trained, kept = master * trained + frozen_bytes * frozen;
    if (train.offload().optimizer()) {
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
    memory.parameters += 4 * models::Buffers(inventory) * (MaySkipSteps(train) ? 2 : 1);
    // The sum over replicas of a sharded model is sent in place.
    if (narrow_reduce && buffers.reduces) {
      memory.reduce_buffers += 2 * (buffers.whole_gradients ? buffers.trained : buffers.waiting);
    }
    if (!kept_sums.empty()) memory.reduce_buffers += kept_sums[shard];
    memory.peak = memory.fixed + memory.parameters + memory.gradients + memory.optimizer_state + memory.gather_buffers +
                  memory.reduce_buffers + memory.activations;
    if (inventory.device() != DEVICE_CUDA && train.offload().to().empty()) memory.peak += memory.host;
  }
  return shards;
}

}  // namespace

std::vector<Memory> MemoryByShard(const Train& train, const Inventory& inventory, const Layout& layout,
                                  absl::Span<const RankProgram> programs) {
  std::vector<Memory> owners(layout.mesh.owners());
  for (uint32_t stage = 0; stage < programs.size(); ++stage) {
    for (uint32_t tensor = 0; tensor < layout.mesh.tensor; ++tensor) {
      const std::vector<Memory> its =
          MemoryOfStage(train, inventory, layout, StageModel(inventory, layout, stage, tensor), programs[stage]);
      for (uint32_t shard = 0; shard < its.size(); ++shard) {
        owners[OwnerAt(layout.mesh, {.pipeline = stage, .shard = shard, .tensor = tensor})] = its[shard];
      }
    }
  }
  return owners;
}

uint64_t BytesAnElement(const Train& train, const StageModel& stage, const RankProgram& program) {
  const Inventory& inventory = stage.inventory();
  const Buffers buffers = BuffersOf(program, SizesOf(stage.table(), inventory));
  const uint64_t width = DtypeBytes(train.precision().compute());
  if (train.offload().optimizer() && inventory.device() == DEVICE_CUDA) {
    return (buffers.whole_parameters || buffers.fetches ? 0 : width) +
           (buffers.whole_gradients || !buffers.over_replicas ? 0 : 4);
  }
  const bool whole = buffers.whole_parameters && !train.offload().optimizer();
  // What is computed with is stored once.
  const auto stored = [&](bool frozen) {
    const uint64_t bytes = DtypeBytes(StoredDtype(train, frozen));
    return whole && bytes == width ? 0 : bytes;
  };
  const uint64_t master = stored(false), frozen = stored(true);
  const uint64_t trained = master + (buffers.whole_gradients ? 0 : 4) +
                           4 * MostStateAnElement(AppliedOptimizer(train, buffers.over_replicas));
  // Where some is frozen: of an average element, which is what shares are made of.
  if (buffers.all == 0) return master;
  return (trained * buffers.trained + frozen * (buffers.all - buffers.trained)) / buffers.all;
}

Memory MemoryOf(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                uint32_t rank) {
  const StageModel model(inventory, layout, layout.roles.at(rank));
  return MemoryOfStage(train, inventory, layout, model, program).at(ShardInStage(layout, rank));
}

}  // namespace muster::strategies
