#include "coordinator/core/growth.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reservations.h"

namespace muster::core {

Growth::Room Growth::Find(JobEntry& job) {
  const JobId id = job.id();
  // It would not start again.
  if (WaitsForReservation(job.record(), *records_) || !LostReservation(job.record(), *records_).empty()) {
    return Room::kNone;
  }
  const absl::Duration ends_in = queue_->EndsIn(job);
  std::vector<scheduler::NodeView> views = queue_->NodeViews();
  const scheduler::Cluster cluster(views);
  std::set<Queue::Kind> hopeless;
  for (const scheduler::Claim& waiting : queue_->InOrder()) {
    const JobEntry& other = records_->jobs.at(waiting.job);
    if (!other.record().waits_for().empty()) continue;  // for this one, maybe
    if (WaitsForReservation(other.record(), *records_)) continue;
    const std::optional<Queue::Kind> kind = queue_->KindOf(other, {.windows = queue_->WindowsOf(other)});
    if (kind.has_value() && hopeless.contains(*kind)) continue;
    // A queued job that could run in an idle cluster takes precedence, whatever its priority: a job is not stopped for
    // slots that it may not get. One that waits until nodes are no longer reserved needs none before.
    const absl::Duration idle_from = cluster.IdleFrom(queue_->DemandOf(other));
    if (idle_from == absl::ZeroDuration() || idle_from < ends_in) return Room::kNone;
    if (kind.has_value()) hopeless.insert(*kind);
  }
  for (scheduler::NodeView& node : views) {
    for (scheduler::SlotView& slot : node.slots) {
      if (slot.holder.job == id) slot.holder = {};
    }
  }
  const scheduler::Cluster without(views);
  scheduler::Demand demand = queue_->DemandOf(job);
  demand.least = static_cast<uint32_t>(job.newest()->record().ranks_size()) + job.least_group();
  demand.ranks = static_cast<uint32_t>(std::min<uint64_t>(demand.ranks, queue_->MostRanks(job)));
  while (demand.ranks >= demand.least) {
    const Plans::Wanted* wanted = plans_->Find(id, Plans::Purpose::kGrowth);
    const scheduler::Decision decision = without.Place(demand, wanted == nullptr ? nullptr : &wanted->decision);
    if (decision.ranks.empty()) return Room::kNone;
    switch (queue_->PlanOn(job, Plans::Purpose::kGrowth, decision)) {
      case Queue::PlanState::kPending:
        return Room::kNotKnownYet;
      case Queue::PlanState::kReady:
        return Room::kSome;
      case Queue::PlanState::kFailed:
        return Room::kNone;
      case Queue::PlanState::kRefused:
        plans_->Drop(id, Plans::Purpose::kGrowth);
    }
    demand.ranks = static_cast<uint32_t>(decision.ranks.size()) - job.least_group();
  }
  return Room::kNone;
}

void Growth::Check(JobEntry& job, Transaction& transaction) {
  const Room found = Find(job);
  if (found == Room::kNotKnownYet) return job.running->grow_at.reset();  // until PlanReady
  const bool room = found == Room::kSome;
  if (!room) plans_->Drop(job.id(), Plans::Purpose::kGrowth);
  if (room && job.running->found_room) {
    const int ranks = job.newest()->record().ranks_size();
    return generations_->Stop(
        job, END_REASON_RESIZED, STOP_INTENT_REQUEUE,
        absl::StrCat("resizing: slots are free for more than its ", ranks, ranks == 1 ? " rank" : " ranks"),
        transaction);
  }
  job.running->found_room = room;
  job.running->grow_at = transaction.now.steady + options_->grow_settle;
}

}  // namespace muster::core
