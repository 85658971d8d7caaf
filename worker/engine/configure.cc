#include "worker/engine/configure.h"

#include <utility>

namespace muster::engine {

absl::StatusOr<Configured> Configure(const Train& train, const Inventory& inventory, uint32_t world, uint32_t rank) {
  absl::StatusOr<strategies::Layout> layout = strategies::MakeLayout(train, inventory, strategies::AnyPlaces(world));
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
  made.config.data_ranks = layout->mesh.data_ranks();
  made.mesh = layout->mesh;
  made.config.schedule = std::move(program->schedule);
  made.config.evaluation = std::move(program->evaluation);
  made.config.train = train;
  return made;
}

}  // namespace muster::engine
