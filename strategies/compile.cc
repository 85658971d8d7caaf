#include "strategies/compile.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
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
  if (train.strategy().kind_case() != Strategy::kSingle) {
    return absl::UnimplementedError(
        absl::StrCat("strategy: ", KindName(train.strategy()), " is not in this build yet; supported: single"));
  }
  if (world != 1) {
    return absl::InvalidArgumentError(absl::StrCat("strategy: single runs on one rank, resources.ranks is ", world));
  }
  return absl::OkStatus();
}

uint64_t StateTensors(const Optimizer& optimizer) {
  if (optimizer.has_adamw()) return 2;
  return optimizer.sgd().momentum() > 0 ? 1 : 0;
}

}  // namespace

uint32_t Microbatches(const Batch& batch, uint32_t world) {
  const uint32_t share = (batch.sequences() + world - 1) / world;
  const uint32_t microbatch = batch.microbatch() > 0 ? batch.microbatch() : share;
  return std::max(1u, (share + microbatch - 1) / microbatch);
}

absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, uint32_t world) {
  if (absl::Status s = CheckKind(train, world); !s.ok()) return s;
  Layout layout;
  layout.table = partition::Replicated(inventory);
  layout.table_sha256 = partition::TableSha256(layout.table);
  layout.roles.emplace_back();  // rank 0, shard 0, replica 0
  return layout;
}

absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout,
                                    uint32_t rank) {
  const uint32_t world = static_cast<uint32_t>(layout.roles.size());
  if (absl::Status s = CheckKind(train, world); !s.ok()) return s;
  if (rank >= world) return absl::InvalidArgumentError(absl::StrCat("strategy: rank ", rank, " of ", world));

  RankProgram program;
  const uint32_t microbatches = Microbatches(train.batch(), world);
  program.schedule = single::Emit(inventory, static_cast<int32_t>(microbatches), train.optimizer().clip_norm() > 0);
  if (absl::Status s = Check(program.schedule, inventory); !s.ok()) return s;
  program.digest = Digest(program.schedule);

  const uint64_t flat_bytes = 4 * partition::FlatElements(inventory);
  const uint64_t share = (train.batch().sequences() + world - 1) / world;
  const uint64_t largest =
      std::min<uint64_t>(share, train.batch().microbatch() > 0 ? train.batch().microbatch() : share);
  Memory& memory = program.memory;
  memory.parameters = flat_bytes;
  memory.gradients = flat_bytes;
  memory.optimizer_state = flat_bytes * StateTensors(train.optimizer());
  memory.activations = PeakActivationBytes(program.schedule, inventory, largest);
  memory.peak = memory.parameters + memory.gradients + memory.optimizer_state + memory.activations;
  return program;
}

}  // namespace muster::strategies
