// The plan of a resolved spec: what is known before anything runs. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"
#include "strategies/hardware.h"
#include "strategies/partition/planners.h"

namespace muster::spec {

struct PlanFor {
  std::vector<RankPlace> ranks;   // from the spec's min_ranks up to its ranks; memory 0: unknown
  strategies::Hardware hardware;  // the hardware to predict times for
  bool ops = false;               // include each op's time and memory
};

// Ranks on unknown nodes, with as many per node as the hardware usually has.
PlanFor AnySlots(const JobSpec& resolved, const strategies::Hardware& hardware);

// The numbers of a resolved spec: parameters, tokens, FLOPs, bytes per rank, predicted times, schedule and digests; of
// strategy: auto what it is resolved to, beside the other candidates. Node names are left empty.
absl::StatusOr<PlanReply> MakePlan(const JobSpec& resolved, const PlanFor& on);

}  // namespace muster::spec
