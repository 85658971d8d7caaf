// What the end of a rank, or of a generation, means and is called. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace muster::core {

// Bounded, and with the cause that the rank's Finished record proves: only with it, an exit in good order is the end of
// the work; without it, somebody stopped the rank.
RankExit Judged(RankExit exit, const RankPlacement& rank);

// Where to look next.
std::string HintFor(const RankExit& exit, const std::string& job, uint32_t rank);

const char* Name(EndReason reason);
// Only these count against the restarts.
bool IsFault(EndReason reason);

}  // namespace muster::core
