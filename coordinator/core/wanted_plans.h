// The plans that the core waits for. Each is asked for by an action and comes as an event; at most one is wanted of a
// job for each purpose, and two that are the same are asked for once. In memory only: what is still wanted after a
// restart of the coordinator is asked for again.
//
//   Plans::Wanted* wanted = plans.Find(job, Plans::Purpose::kStart);
//   if (wanted == nullptr) wanted = plans.Ask(job, Plans::Purpose::kStart, spec, slots, decision);
//   if (!wanted->answer.has_value()) return;  // the next look at the job comes with PlanReady
//
// Not thread-safe.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/scheduler/place.h"
#include "proto/spec.pb.h"

namespace muster::core {

// Action: a plan of a resolved spec on these slots is wanted. The answer is one PlanReady of that key.
struct RequestPlan {
  std::string key;
  JobSpec spec;
  Slots slots;
};
// Action: no one wants it any more. An answer that comes all the same is ignored.
struct CancelPlan {
  std::string key;
};
// Event. Errors: those of PlanJob; the job cannot be laid out on those slots.
struct PlanReady {
  static constexpr absl::string_view kName = "plan ready";
  std::string key;
  absl::StatusOr<PlannedPtr> plan;
};

class Plans {
 public:
  enum class Purpose {
    kStart,       // of a queued job's next generation, on slots that are free
    kGrowth,      // whether a running job fits on more slots
    kGeneration,  // of a running generation, after a restart of the coordinator
  };
  struct Wanted {
    std::string key;
    JobSpec spec;
    Slots slots;                   // as they were when it was asked for
    scheduler::Decision decision;  // which slots; of kStart and kGrowth
    std::optional<absl::StatusOr<PlannedPtr>> answer;
  };
  using Waiting = std::pair<JobId, Purpose>;

  // Null: nothing is wanted. Valid until the next call that is not const.
  Wanted* Find(const JobId& job, Purpose purpose);
  const Wanted* Find(const JobId& job, Purpose purpose) const;
  // In place of what was wanted before for that purpose. Answered at once where it is on offer.
  Wanted* Ask(const JobId& job, Purpose purpose, JobSpec spec, Slots slots, scheduler::Decision decision);
  void Drop(const JobId& job, Purpose purpose);
  void DropAll(const JobId& job);

  // A plan that someone else has made already, until TakeRequests.
  void Offer(PlanReady plan) { offered_ = std::move(plan); }
  // Those that wanted it; empty: no one does any more.
  std::vector<Waiting> Answer(const PlanReady& plan);

  // At the end of each event: what to ask for, and what no one wants any more.
  struct Requests {
    std::vector<CancelPlan> cancelled;
    std::vector<RequestPlan> requested;
  };
  Requests TakeRequests();

 private:
  std::map<Waiting, Wanted> wanted_;
  std::set<std::string> in_flight_;  // keys
  std::optional<PlanReady> offered_;
  bool changed_ = false;  // since TakeRequests
};

}  // namespace muster::core
