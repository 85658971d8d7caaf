// What a job spec means: defaults and checks. Pure; plan.h has what follows from it.
#pragma once

#include <vector>

#include "absl/time/time.h"
#include "common/timeouts.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"

namespace muster::spec {

struct Limits {
  uint32_t max_ranks = 4096;
  Timeouts timeouts = Derive(absl::Seconds(10));  // of the service
};

// Fills in every default, so that the result, resolved again, is itself. Returns all errors at once; empty: `spec` is
// resolved. Paths are those of the YAML file ("optimizer.lr", "model.heads").
std::vector<SpecError> Resolve(const Limits& limits, JobSpec& spec);

}  // namespace muster::spec
