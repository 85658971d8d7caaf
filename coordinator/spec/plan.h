// The plan of a resolved spec: what is known before anything runs. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/job_plan.h"
#include "proto/job.pb.h"
#include "proto/jobs.pb.h"
#include "proto/spec.pb.h"
#include "strategies/budget.h"
#include "strategies/hardware.h"

namespace muster::spec {

struct PlanFor {
  core::Slots slots;              // from the spec's min_ranks up to its ranks; memory 0: unknown
  strategies::Hardware hardware;  // the hardware to predict times for
  bool ops = false;               // include each op's time and memory
};

// Ranks on unknown nodes, with as many per node as the hardware usually has.
PlanFor AnySlots(const JobSpec& resolved, const strategies::Hardware& hardware, uint64_t memory_bytes = 0);

// Where a job would be placed now is `placed`; no ranks: there are too few slots, even in an idle cluster.
struct PlanAssumptions {
  std::string hardware;       // to predict times for, on unknown nodes where it is GPUs and the slots are CPUs or the
                              // other way round; empty: what the slots are
  uint64_t memory_bytes = 0;  // of every slot, on unknown nodes; 0: as the nodes have it
  bool ops = false;
};
// InvalidArgument: no such hardware; the message names those that there are.
absl::StatusOr<PlanFor> SlotsToPlanFor(const JobSpec& resolved, const core::Slots& placed,
                                       const PlanAssumptions& assumptions);

// One line for each way in which these nodes' CPUs compute a job in bf16, by node; none for those that do not tell:
// "bf16 GEMMs go through fp32 panels, at about the speed of fp32, on node-a (AVX2)".
std::vector<std::string> Bf16Notes(const std::map<std::string, Cpu>& cpus);

// One plan, for those who start a job and for those who look at it.
struct MadePlan {
  core::PlannedPtr planned;
  // The numbers of a resolved spec: parameters, tokens, FLOPs, bytes per rank, predicted times, schedule and digests;
  // of strategy: auto what it is resolved to, beside the other candidates. Node names and `resolved` are left empty:
  // specs that differ in what no plan depends on (core::PlanKey) share it.
  PlanReply reply;
};

// Errors as core::PlanJob.
absl::StatusOr<MadePlan> MakePlan(const JobSpec& resolved, const PlanFor& on, strategies::Budget* budget = nullptr);

}  // namespace muster::spec
