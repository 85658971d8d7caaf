#include "strategies/compile.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/ddp/ddp.h"
#include "strategies/partition/flat.h"
#include "strategies/partition/table.h"
#include "strategies/schedule/check.h"
#include "strategies/schedule/memory.h"
#include "strategies/single/single.h"

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

absl::Status CheckKind(const Train& train, uint32_t world) {
  switch (train.strategy().kind_case()) {
    case Strategy::kSingle:
      if (world == 1) return absl::OkStatus();
      return absl::InvalidArgumentError(
          absl::StrCat("strategy: single runs on one rank, resources.ranks is ", world, "; ddp runs on several"));
    case Strategy::kDdp:
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          absl::StrCat("strategy: ", KindName(train.strategy()), " is not in this build yet; supported: single, ddp"));
  }
}

// Large enough for the link, small enough that most of it overlaps the backward.
constexpr double kMiB = 1 << 20;
constexpr double kLeastBucket = 1, kMostBucket = 25;  // MiB; 25 is PyTorch's bucket_cap_mb
constexpr double kBuckets = 16;

uint64_t BucketBytes(const Ddp& ddp, uint64_t gradient_bytes) {
  const double mib = ddp.has_bucket_mib()
                         ? ddp.bucket_mib()
                         : std::clamp(static_cast<double>(gradient_bytes) / kMiB / kBuckets, kLeastBucket, kMostBucket);
  return static_cast<uint64_t>(mib * kMiB);
}

Schedule Emit(const Train& train, const Inventory& inventory, uint32_t world, int32_t microbatches) {
  const bool clip = train.optimizer().clip_norm() > 0;
  if (world == 1) return single::Emit(inventory, microbatches, clip);
  const uint64_t bytes = 4 * partition::FlatElements(inventory);
  return ddp::Emit(
      inventory,
      {.microbatches = microbatches, .clip = clip, .bucket_bytes = BucketBytes(train.strategy().ddp(), bytes)});
}

uint64_t StateTensors(const Optimizer& optimizer) {
  if (optimizer.has_adamw()) return 2;
  return optimizer.sgd().momentum() > 0 ? 1 : 0;
}

}  // namespace

uint32_t SameProgramAs(const Train& train, uint32_t rank) { return train.strategy().has_ddp() ? 0 : rank; }

Share ShareOf(uint64_t sequences, uint32_t world, uint32_t rank) {
  const uint64_t each = sequences / world, left = sequences % world;
  return {rank * each + std::min<uint64_t>(rank, left), each + (rank < left ? 1 : 0)};
}

uint32_t Microbatches(const Batch& batch, uint32_t world) {
  const uint32_t share = static_cast<uint32_t>(ShareOf(batch.sequences(), world, 0).sequences);
  const uint32_t microbatch = batch.microbatch() > 0 ? batch.microbatch() : share;
  return std::max(1u, (share + microbatch - 1) / microbatch);
}

absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, uint32_t world) {
  if (absl::Status s = CheckKind(train, world); !s.ok()) return s;
  Layout layout;
  layout.table = partition::Replicated(inventory);
  layout.table_sha256 = partition::TableSha256(layout.table);
  for (uint32_t rank = 0; rank < world; ++rank) {
    RankRole& role = layout.roles.emplace_back();
    role.set_rank(rank);
    role.set_replica(rank);
  }
  return layout;
}

absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout,
                                    uint32_t rank) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  if (absl::Status s = CheckKind(train, world); !s.ok()) return s;
  if (rank >= world) return absl::InvalidArgumentError(absl::StrCat("strategy: rank ", rank, " of ", world));

  RankProgram program;
  const uint32_t microbatches = Microbatches(train.batch(), world);
  program.schedule = Emit(train, inventory, world, static_cast<int32_t>(microbatches));
  if (absl::Status s = Check(program.schedule, inventory); !s.ok()) return s;
  program.digest = Digest(program.schedule);

  const uint64_t flat_bytes = 4 * partition::FlatElements(inventory);
  const uint64_t share = ShareOf(train.batch().sequences(), world, 0).sequences;
  const uint64_t largest =
      std::min<uint64_t>(share, train.batch().microbatch() > 0 ? train.batch().microbatch() : share);
  Memory& memory = program.memory;
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
  return program;
}

}  // namespace muster::strategies
