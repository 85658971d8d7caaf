// Resolves a job spec: applies defaults and checks it. Pure; plan.h plans the result.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "common/timeouts.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"

namespace muster::spec {

struct Limits {
  uint32_t max_ranks = 4096;
  Timeouts timeouts = Derive(absl::Seconds(10));  // the service's time-outs
};

// Fills in every default; resolving the result again does not change it. Returns all errors at once; empty: `spec` is
// resolved. Error paths are those of the YAML file ("optimizer.lr", "model.heads").
std::vector<SpecError> Resolve(const Limits& limits, JobSpec& spec);

}  // namespace muster::spec
