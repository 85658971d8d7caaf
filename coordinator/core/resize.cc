// Jobs that may run on fewer ranks than they request. A job shrinks when a generation starts: it gets the most ranks
// that there are free slots for and the planner accepts. It grows by an orderly stop with a checkpoint.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/state.h"

namespace muster::core {

uint32_t Core::State::LeastRanks(const JobEntry& job) {
  const Resources& resources = job.record().spec().resources();
  return resources.has_min_ranks() ? std::min(resources.min_ranks(), resources.ranks()) : resources.ranks();
}

bool Core::State::RunsOnFewer(const JobEntry& job) {
  return static_cast<uint32_t>(job.newest()->record().ranks_size()) < job.record().spec().resources().ranks();
}

Core::State::Room Core::State::RoomToGrow(JobEntry& job) {
  const JobId id(job.record().id());
  std::vector<scheduler::NodeView> views = NodeViews();
  const scheduler::Cluster cluster(views);
  for (const scheduler::Claim& waiting : Queue()) {
    // A queued job that could run in an idle cluster takes precedence, whatever its priority: a job is not stopped for
    // slots that it may not get.
    if (cluster.FitsWhenIdle(DemandOf(jobs.at(waiting.job)))) return Room::kNone;
  }
  for (scheduler::NodeView& node : views) {
    for (scheduler::SlotView& slot : node.slots) {
      if (slot.holder.job == id) slot.holder = {};
    }
  }
  const scheduler::Cluster without(views);
  scheduler::Demand demand = DemandOf(job);
  demand.least = static_cast<uint32_t>(job.newest()->record().ranks_size()) + 1;
  while (demand.ranks >= demand.least) {
    const Plans::Wanted* wanted = plans.Find(id, Plans::Purpose::kGrowth);
    const scheduler::Decision decision = without.Place(demand, wanted == nullptr ? nullptr : &wanted->decision);
    if (decision.ranks.empty()) return Room::kNone;
    switch (PlanOn(job, Plans::Purpose::kGrowth, decision)) {
      case PlanState::kPending:
        return Room::kNotKnownYet;
      case PlanState::kReady:
        return Room::kSome;
      case PlanState::kFailed:
        return Room::kNone;
      case PlanState::kRefused:
        plans.Drop(id, Plans::Purpose::kGrowth);
    }
    demand.ranks = static_cast<uint32_t>(decision.ranks.size()) - 1;
  }
  return Room::kNone;
}

// Called after its generation has run for a while, and then periodically. Slots count as free when two checks in a row
// find them, so a flapping node does not cause a resize.
void Core::State::CheckGrowth(JobEntry& job, Transaction& transaction) {
  const Room found = RoomToGrow(job);
  if (found == Room::kNotKnownYet) return job.grow_at.reset();  // until PlanReady
  const bool room = found == Room::kSome;
  if (!room) plans.Drop(JobId(job.record().id()), Plans::Purpose::kGrowth);
  if (room && job.found_room) {
    const int ranks = job.newest()->record().ranks_size();
    return Stop(job, END_REASON_RESIZED, STOP_INTENT_REQUEUE,
                absl::StrCat("there are slots for more than its ", ranks, ranks == 1 ? " rank" : " ranks"),
                transaction);
  }
  job.found_room = room;
  job.grow_at = transaction.now.steady + options.grow_settle;
}

}  // namespace muster::core
