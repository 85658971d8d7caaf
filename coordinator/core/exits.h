// Classifies how a rank or a generation ended, and names it for users. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/job.pb.h"
#include "strategies/schedule/mesh.h"

namespace muster::core {

// Returns `exit` with bounded texts and its final cause. An orderly exit is COMPLETED only if the rank has sent its
// Finished record; otherwise the rank was STOPPED.
RankExit ClassifyExit(RankExit exit, const RankPlacement& rank);

// A hint for the user about where to look next.
std::string HintFor(const RankExit& exit, const std::string& job, uint32_t rank);
// Likewise of a job that has failed because the nodes that could hold it have refused it.
std::string HintForRefusedJob(const std::string& job, uint32_t rank);

// "rank 5", and where ranks have more places than one axis has, where it is: "rank 5 (stage 1, shard 1)".
std::string RankName(const Generation& generation, uint32_t rank);
// By the roles of its ranks.
Mesh MeshOf(const Generation& generation);

// Whether the rank's end is a fault that its node may be to blame for. A rank that vanished is not: when a node is
// lost, all its ranks vanish for one fault.
bool MayBlameNode(const RankExit& exit);

const char* Name(EndReason reason);
// Whether generations that end this way count against max_restarts.
bool IsFault(EndReason reason);

}  // namespace muster::core
