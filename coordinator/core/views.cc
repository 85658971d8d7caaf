// Read-only views of a Core: jobs with their reason, nodes with their slots, and the desired state of each node.
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/proto_time.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

std::string Ordinal(uint64_t n) {
  const char* suffix = n % 100 >= 11 && n % 100 <= 13 ? "th"
                       : n % 10 == 1                  ? "st"
                       : n % 10 == 2                  ? "nd"
                       : n % 10 == 3                  ? "rd"
                                                      : "th";
  return absl::StrCat(n, suffix);
}

}  // namespace

std::vector<Core::State::Waiting> Core::State::WaitingJobs(const JobId& only) const {
  std::vector<Waiting> all;
  scheduler::Cluster cluster(NodeViews());
  scheduler::Pass pass(&cluster);
  uint32_t position = 0;
  for (const scheduler::Claim& claim : Queue()) {
    const JobEntry& job = jobs.at(claim.job);
    const bool asked = only.empty() || claim.job == only;
    ++position;
    std::string why;
    if (job.not_before.has_value()) {
      why = "waits out its back-off";
    } else {
      const scheduler::Demand demand = DemandOf(job);
      const Plans::Wanted* wanted = plans.Find(claim.job, Plans::Purpose::kStart);
      const scheduler::Decision decision =
          pass.Consider(claim, demand, wanted == nullptr ? nullptr : &wanted->decision);
      const Unfit* unfit = decision.ranks.empty() ? nullptr : RefusedOn(job, SlotsFor(decision));
      if (wanted != nullptr && !wanted->answer.has_value() && !decision.ranks.empty()) {
        why = "slots are free for it, and its plan is being made";
        pass.Start(claim, decision);
      } else if (unfit != nullptr) {
        why = "does not fit the slots that are free: " + unfit->why;
      } else if (!decision.ranks.empty()) {
        why = "is about to start";
        pass.Start(claim, decision);
      } else if (asked) {
        why = pass.Why(decision, demand);
        if (!decision.fits_when_idle && !job.refused.empty()) {
          absl::StrAppend(&why, ": ", job.refused.back().unfit.why);
        }
      }
    }
    if (!asked) continue;
    // Also why it was queued again.
    const std::string& again = job.record().reason();
    all.push_back({claim.job, position,
                   absl::StrCat(Ordinal(position), " in the queue: ", why, again.empty() ? "" : "; ", again)});
    if (claim.job == only) break;
  }
  return all;
}

Job Core::State::View(const JobEntry& job) const {
  Job view = job.record();
  if (job.machine.state() != JOB_STATE_QUEUED) return view;
  Waiting waiting = WaitingJobs(JobId(view.id())).at(0);
  view.set_reason(std::move(waiting.reason));
  view.set_queue_position(waiting.position);
  return view;
}

Node Core::State::View(const NodeEntry& node, const Holders& holders) const {
  Node view = node.record();
  view.clear_slots();
  for (const Slot& slot : SlotsOf(node, holders)) *view.add_slots() = slot;
  return view;
}

muster::Stop Core::State::MakeStop(EndReason reason, const Job& job) const {
  muster::Stop stop;
  stop.set_reason(reason);
  stop.set_checkpoint_first(!IsFault(reason) && !job.spec().train().checkpoint().path().empty());
  *stop.mutable_deadline() = ToProto(StopDeadline(job, reason));
  return stop;
}

Assignment Core::State::MakeAssignment(const JobEntry& job, const Generation& generation,
                                       const RankPlacement& rank) const {
  Assignment assignment;
  assignment.mutable_key()->set_job(generation.job());
  assignment.mutable_key()->set_generation(generation.number());
  assignment.mutable_key()->set_rank(rank.rank());
  assignment.set_world(static_cast<uint32_t>(generation.ranks_size()));
  *assignment.mutable_role() = rank.role();
  *assignment.mutable_slots() = rank.slots();
  assignment.set_device(generation.device());
  *assignment.mutable_spec() = SpecOf(job.record(), generation);
  assignment.set_schedule_digest(generation.schedule_digest());
  if (generation.has_resume_from()) *assignment.mutable_resume_from() = generation.resume_from();
  *assignment.mutable_collective_deadline() = ToProto(TimeoutsOf(job.record()).collective);
  *assignment.mutable_published() = job.record().checkpoints();
  if (rank.rank() == 0) assignment.set_checkpoint_request(job.checkpoint_request);  // rank 0 informs the other ranks
  if (job.traced.contains(rank.rank())) *assignment.mutable_trace() = job.trace;
  if (plans.Find(JobId(generation.job()), Plans::Purpose::kGeneration) != nullptr) {
    assignment.set_table_sha256(generation.table_sha256());  // it can be fetched when the plan is made again
  }
  if (job.plan != nullptr) {
    assignment.set_table_sha256(job.plan->table_sha256);
    assignment.set_schedule_digest(job.plan->digests.at(rank.rank()));
  }
  return assignment;
}

Desired Core::State::DesiredFor(const NodeId& node) const {
  Desired desired;
  const auto found = nodes.find(node);
  if (found != nodes.end()) desired.set_revision(found->second.revision);
  for (const auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    for (const RankPlacement& rank : generation->record().ranks()) {
      // A rank's exit is on disk before the rank is left out here; the worker may then forget it.
      if (rank.node() != node.value() || rank.state() == RANK_STATE_EXITED) continue;
      DesiredRank& goal = *desired.add_ranks();
      goal.mutable_key()->set_job(id.value());
      goal.mutable_key()->set_generation(generation->record().number());
      goal.mutable_key()->set_rank(rank.rank());
      if (generation->state() == GENERATION_STATE_STOPPING) {
        *goal.mutable_stop() = MakeStop(generation->record().reason(), job.record());
      } else {
        *goal.mutable_run() = MakeAssignment(job, generation->record(), rank);
      }
    }
  }
  return desired;
}

}  // namespace muster::core
