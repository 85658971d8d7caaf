#include "strategies/compile.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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

const char* KindName(const Strategy& strategy) {
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

absl::Status NotYet(const Strategy& strategy) {
  return absl::UnimplementedError(
      absl::StrCat("strategy: ", KindName(strategy), " is not in this build yet; supported: single, ddp, zero, fsdp"));
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
      return zero::TableOf(strategy.zero(), inventory, ranks);
    case Strategy::kFsdp:
      return fsdp::TableOf(strategy.fsdp(), inventory, ranks);
    default:
      return NotYet(strategy);
  }
}

absl::StatusOr<Shape> ShapeOf(const Train& train, const Inventory& inventory, uint32_t shards, uint32_t world) {
  const Strategy& strategy = train.strategy();
  Shape shape;
  switch (strategy.kind_case()) {
    case Strategy::kSingle:
      shape = single::ShapeOf();
      break;
    case Strategy::kDdp:
      shape = ddp::ShapeOf(strategy.ddp(), inventory);
      break;
    case Strategy::kZero:
      shape = zero::ShapeOf(strategy.zero(), inventory);
      break;
    case Strategy::kFsdp:
      shape = fsdp::ShapeOf(strategy.fsdp(), inventory, shards, world);
      break;
    default:
      return NotYet(strategy);
  }
  if (world == 1) shape = single::ShapeOf();
  shape.microbatches = static_cast<int32_t>(Microbatches(train.batch(), world));
  shape.recompute = train.activation_checkpointing();
  return shape;
}

uint64_t StateTensors(const Optimizer& optimizer) {
  if (optimizer.has_adamw()) return 2;
  return optimizer.sgd().momentum() > 0 ? 1 : 0;
}

}  // namespace

std::vector<RankPlace> AnyPlaces(uint32_t world) { return std::vector<RankPlace>(world); }

uint32_t SameProgramAs(const Train&, uint32_t) { return 0; }

Share ShareOf(uint64_t sequences, uint32_t world, uint32_t rank) {
  const uint64_t each = sequences / world, left = sequences % world;
  return {rank * each + std::min<uint64_t>(rank, left), each + (rank < left ? 1 : 0)};
}

uint32_t Microbatches(const Batch& batch, uint32_t world) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), world, 0).sequences);
  const uint32_t microbatch = batch.microbatch() > 0 ? batch.microbatch() : share;
  return std::max(1u, (share + microbatch - 1) / microbatch);
}

absl::StatusOr<Layout> LayoutOf(PartitionTable table, const Inventory& inventory, uint32_t world) {
  if (absl::Status s = partition::Check(table, inventory); !s.ok()) return s;
  if (world % table.shards() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a table of ", table.shards(), " shards, ", world, " ranks are no multiple of that"));
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

absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks) {
  absl::StatusOr<PartitionTable> table = TableOf(train, inventory, ranks);
  if (!table.ok()) return table.status();
  return LayoutOf(*std::move(table), inventory, static_cast<uint32_t>(ranks.size()));
}

absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout,
                                    uint32_t rank) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  if (rank >= world) return absl::InvalidArgumentError(absl::StrCat("strategy: rank ", rank, " of ", world));
  const absl::StatusOr<Shape> shape = ShapeOf(train, inventory, layout.table.shards(), world);
  if (!shape.ok()) return shape.status();
  RankProgram program{.schedule = Build(inventory, *shape), .evaluation = BuildEvaluation(inventory, *shape)};
  for (const Schedule* schedule : {&program.schedule, &program.evaluation}) {
    if (absl::Status s = Check(*schedule, inventory); !s.ok()) return s;
  }
  program.digest = Sha256Hex(absl::StrCat(Digest(program.schedule), Digest(program.evaluation)));
  return program;
}

Memory MemoryOf(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                uint32_t) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  const uint64_t flat_bytes = 4 * partition::FlatElements(inventory);
  const uint64_t share = ShareOf(train.batch().sequences(), world, 0).sequences;
  const uint64_t largest =
      std::min<uint64_t>(share, train.batch().microbatch() > 0 ? train.batch().microbatch() : share);
  Memory memory;
  memory.parameters = flat_bytes;
  memory.gradients = flat_bytes;
  memory.optimizer_state = flat_bytes * StateTensors(train.optimizer());
  memory.activations = PeakActivationBytes(program.schedule, inventory, largest);
  if (train.precision().compute() == DTYPE_BF16) {
    memory.parameters += flat_bytes / 2;  // what is computed with
    memory.activations += models::Bf16Bytes(inventory, largest);
  }
  if (world > 1 && train.precision().reduce() == DTYPE_BF16) memory.reduce_buffers = flat_bytes / 2;
  memory.peak =
      memory.parameters + memory.gradients + memory.optimizer_state + memory.reduce_buffers + memory.activations;
  return memory;
}

}  // namespace muster::strategies
