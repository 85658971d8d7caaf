#include "coordinator/core/preemption.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/reservations.h"
#include "coordinator/core/topology.h"

namespace muster::core {

scheduler::Victim Preemption::VictimOf(const JobEntry& job, const scheduler::Claim& claim, Now now) const {
  const Job& record = job.record();
  scheduler::Victim victim{.claim = claim, .project = ProjectOf(record), .slots = Records::SlotsHeldBy(job)};
  victim.preemptible = record.spec().preemptible();
  const bool saves = !record.spec().train().checkpoint().path().empty();
  const double since = absl::ToDoubleSeconds(now.steady - job.running->saved_at);
  victim.lost_slot_seconds = static_cast<double>(victim.slots) * (saves ? since : since + record.held_seconds());
  if (job.least_ranks() < victim.slots) {
    victim.fewer.ranks = job.least_ranks();
    victim.fewer.device = job.newest()->record().device();
    victim.fewer.slot_bytes = job.slot_bytes;
    victim.fewer.multiple = job.least_group();
    victim.fewer.together = TensorRanksOf(record.spec());
    victim.fewer.context = ContextRanksOf(record.spec());
    Select(record.spec().resources(), *records_, victim.fewer);
    KeepOffReserved(record.reservation(), claim.ends_in, now.wall, *records_, victim.fewer);
  }
  return victim;
}

bool Preemption::Returns(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Claimant& claimant) {
  if (job.record().stop_intent() != STOP_INTENT_REQUEUE) return false;
  return job.newest()->record().reason() != END_REASON_PREEMPTED && scheduler::Before(claim, claimant.claim);
}

std::optional<SteadyTime> Preemption::For(const JobEntry& job, scheduler::Demand demand,
                                          std::vector<scheduler::NodeView> nodes,
                                          const std::map<JobId, scheduler::Claim>& claims,
                                          const scheduler::Quotas& quotas, Transaction& transaction) {
  const SteadyTime now = transaction.now.steady;
  scheduler::Claimant claimant{claims.at(job.id()), ProjectOf(job.record()), std::move(demand),
                               options_->preempt_lower_priority};
  std::vector<scheduler::Victim> candidates;
  std::optional<SteadyTime> later;
  for (scheduler::NodeView& node : nodes) {
    for (scheduler::SlotView& slot : node.slots) {
      const JobEntry* holder = slot.holder.job.empty() ? nullptr : records_->FindJob(slot.holder.job);
      if (holder == nullptr || holder->machine.state() != JOB_STATE_STOPPING) continue;
      if (!Returns(*holder, claims.at(holder->id()), claimant)) slot.holder = {};
    }
  }
  for (const JobEntry* other : std::as_const(*records_).Live()) {
    if (other->machine.state() != JOB_STATE_RUNNING) continue;
    if (other->newest()->record().device() != claimant.demand.device) continue;
    scheduler::Victim victim = VictimOf(*other, claims.at(other->id()), transaction.now);
    if (!scheduler::MayPreempt(claimant, victim, quotas)) continue;
    const SteadyTime until = other->running->started + options_->preemption_min_run;
    if (now < until) {
      later = std::min(later.value_or(until), until);
    } else {
      candidates.push_back(std::move(victim));
    }
  }
  const std::vector<JobId> victims = scheduler::ChooseVictims(nodes, claimant, std::move(candidates), quotas);
  for (const JobId& id : victims) {
    if (transaction.Full()) break;  // the next tick stops the others
    JobEntry& victim = records_->jobs.at(id);
    const bool reclaim = claims.at(id).borrows && !claimant.claim.borrows;
    generations_->Stop(
        victim, END_REASON_PREEMPTED, STOP_INTENT_REQUEUE,
        absl::StrCat("preempted by ", job.record().id(),
                     reclaim ? absl::StrCat(": project ", claimant.project, " needs its quota, of which it held some")
                             : absl::StrCat(", which has priority ", claimant.claim.priority)),
        transaction);
  }
  return victims.empty() ? later : std::nullopt;
}

}  // namespace muster::core
