#include "worker/engine/configure.h"

#include <utility>

#include "strategies/hardware.h"

namespace muster::engine {

absl::StatusOr<Configured> Configure(const Train& train, const Inventory& inventory, uint32_t world, uint32_t rank,
                                     uint32_t ranks_on_node) {
  absl::StatusOr<strategies::Layout> layout = strategies::MakeLayout(
      train, inventory, strategies::FullNodes(world, ranks_on_node > 0 ? ranks_on_node : world, /*memory_bytes=*/0));
  if (!layout.ok()) return layout.status();
  absl::StatusOr<strategies::RankProgram> program = strategies::Compile(train, inventory, *layout, rank);
  if (!program.ok()) return program.status();
  Configured made;
  made.memory = strategies::MemoryOf(train, inventory, *layout, *program, rank);
  const strategies::StageModel stage(inventory, *layout, layout->roles[rank]);
  made.config.inventory = stage.inventory();
  made.config.table = stage.table();
  made.config.rank = rank;
  made.config.shard = strategies::ShardInStage(*layout, rank);
  made.config.mesh = layout->mesh;
  made.mesh = layout->mesh;
  made.config.schedule = std::move(program->schedule);
  made.config.evaluation = std::move(program->evaluation);
  made.config.train = train;
  return made;
}

}  // namespace muster::engine
