// What follows from a resolved spec before anything runs. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"
#include "strategies/hardware.h"
#include "strategies/partition/planners.h"

namespace muster::spec {

struct PlanFor {
  std::vector<RankPlace> ranks;   // as many as the spec's, or from its min_ranks; memory 0 where it is not known
  strategies::Hardware hardware;  // that times are predicted for
  bool ops = false;               // also each op's time and memory
};

// Ranks on nodes of which nothing is known, as full as the hardware's usually are.
PlanFor AnySlots(const JobSpec& resolved, const strategies::Hardware& hardware);

// The numbers of a resolved spec: parameters, tokens, FLOPs, bytes per rank, predicted times, schedule and digests; of
// strategy: auto what it is resolved to, beside the other candidates. Node names are left empty.
absl::StatusOr<PlanReply> MakePlan(const JobSpec& resolved, const PlanFor& on);

}  // namespace muster::spec
