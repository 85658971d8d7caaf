// What a job spec means: defaults, checks, and the plan that follows from it. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"

namespace muster::spec {

struct Limits {
  uint32_t max_ranks = 4096;
};

// Fills in every default, so that the result, resolved again, is itself. Returns all errors at once; empty: `spec` is
// resolved. Paths are those of the YAML file ("optimizer.lr", "model.heads").
std::vector<SpecError> Resolve(const Limits& limits, JobSpec& spec);

// The numbers of a resolved spec: parameters, tokens, FLOPs, bytes per rank, schedule and digests. Nodes are left
// empty.
absl::StatusOr<PlanReply> MakePlan(const JobSpec& resolved);

}  // namespace muster::spec
