// What the core must know of a job's layout. A seam, so that the core's tests may run gangs of any size before a
// strategy for them exists.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"

namespace muster::core {

struct Planned {
  PartitionTable table;
  std::string table_sha256;
  std::vector<RankRole> roles;       // by rank
  std::vector<std::string> digests;  // of each rank's schedule
};

// Of a resolved spec on `world` ranks. Pure: the same answer in every process of one build. InvalidArgument,
// Unimplemented: it cannot be laid out so; the job fails with that message.
using Planner = std::function<absl::StatusOr<Planned>(const JobSpec& spec, uint32_t world)>;

// The real one: by models and strategies, as each trainer does it.
absl::StatusOr<Planned> PlanByStrategies(const JobSpec& spec, uint32_t world);

}  // namespace muster::core
