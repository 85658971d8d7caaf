// The jobs that a submitted spec with `sync` becomes: one for each replica of the run. Private to coordinator/core.
#pragma once

#include <cstdint>
#include <string>

#include "common/ids.h"
#include "proto/spec.pb.h"

namespace muster::core {

uint32_t ReplicasOf(const JobSpec& spec);  // 1: it is a job, not a run
JobId JobOfReplica(const std::string& run, uint32_t replica);
// With a folder of its own for checkpoints, unless {job} in checkpoint.path gives it one.
JobSpec SpecOfReplica(const JobSpec& of, const std::string& run, uint32_t replica);

}  // namespace muster::core
