// Proves that the schedules of a pipeline's stages fit together. Pure.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

// What all ranks of a stage run.
struct StageSchedule {
  const Schedule* schedule;
  const Inventory* inventory;  // of the stage
};

// Internal, naming the stages and the ops:
//  - collectives: in each group that spans stages, all stages issue the same ones in the same order
//  - edges: the k-th send of an edge and the k-th receive are of the same microbatch and of equally many bytes
//  - progress: played together, every stage gets to its end. A send ends together with its receive, a collective when
//    all of its stages are at it, and nothing is buffered; an op begins after the ops that it waits for, after those of
//    its stream before it, and after the computing before it. So neither a queue that issues in order nor a device that
//    runs streams in order can block
// REQUIRES: each passed Check.
absl::Status CheckStages(const std::vector<StageSchedule>& stages);

}  // namespace muster
