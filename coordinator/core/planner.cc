#include "coordinator/core/planner.h"

#include <utility>

#include "models/inventory.h"
#include "strategies/compile.h"

namespace muster::core {

absl::StatusOr<Planned> PlanByStrategies(const JobSpec& spec, uint32_t world) {
  const auto inventory = models::MakeInventory(spec.train().model());
  if (!inventory.ok()) return inventory.status();
  auto layout = strategies::MakeLayout(spec.train(), *inventory, strategies::AnyPlaces(world));
  if (!layout.ok()) return layout.status();
  Planned planned;
  for (uint32_t rank = 0; rank < world; ++rank) {
    if (const uint32_t same = strategies::SameProgramAs(spec.train(), rank); same < rank) {
      planned.digests.push_back(planned.digests[same]);
      continue;
    }
    const auto program = strategies::Compile(spec.train(), *inventory, *layout, rank);
    if (!program.ok()) return program.status();
    planned.digests.push_back(program->digest);
  }
  planned.table = std::move(layout->table);
  planned.table_sha256 = std::move(layout->table_sha256);
  planned.roles = std::move(layout->roles);
  return planned;
}

}  // namespace muster::core
