#include "coordinator/core/views.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/proto_time.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/reservations.h"

namespace muster::core {
namespace {

std::vector<Slot> SlotsOf(const NodeEntry& node, const Records::Holders& holders) {
  const auto here = holders.find(NodeId(node.record().id()));
  std::vector<Slot> slots(node.record().slots().begin(), node.record().slots().end());
  for (Slot& slot : slots) {
    slot.set_state(SLOT_STATE_FREE);
    if (here != holders.end()) {
      if (const auto held = here->second.find(slot.index()); held != here->second.end()) {
        slot.set_state(held->second.state);
        slot.set_job(held->second.job.value());
      }
    }
    if (const auto stuck = node.stuck.find(slot.index()); stuck != node.stuck.end()) {
      slot.set_state(SLOT_STATE_STUCK);
      slot.set_job(stuck->second.rank.job.value());
      slot.set_stuck(absl::StrCat("rank ", stuck->second.rank.rank, " of generation ", stuck->second.rank.generation,
                                  " of ", stuck->second.rank.job.value(), ": ", stuck->second.processes));
    }
    if (node.machine.state() != NODE_STATE_LIVE) slot.set_state(SLOT_STATE_UNKNOWN);
  }
  return slots;
}

// Nodes are numbered in the order of the ranks.
void AddNodes(const Generation& generation, const RankPlacement& rank, Assignment& assignment) {
  std::map<std::string, uint32_t> numbers;
  for (const RankPlacement& other : generation.ranks()) {
    numbers.emplace(other.node(), static_cast<uint32_t>(numbers.size()));
  }
  assignment.set_node_index(numbers.at(rank.node()));
  assignment.set_nodes(static_cast<uint32_t>(numbers.size()));
}

}  // namespace

Job Views::Of(const JobEntry& job) const {
  Job view = job.record();
  if (job.machine.state() != JOB_STATE_QUEUED) return view;
  Queue::Waiting waiting = queue_->WaitingJobs(JobId(view.id())).at(0);
  view.set_reason(std::move(waiting.reason));
  view.set_queue_position(waiting.position);
  if (waiting.starts_by.has_value()) *view.mutable_predicted_start() = ToProto(*waiting.starts_by);
  return view;
}

Node Views::Of(const NodeEntry& node, const Records::Holders& holders) const {
  Node view = node.record();
  view.clear_slots();
  view.set_recent_faults(static_cast<uint32_t>(view.faults_size()));
  for (const Slot& slot : SlotsOf(node, holders)) *view.add_slots() = slot;
  if (const Reservation* next = NextReservation(view.id(), *records_); next != nullptr) {
    view.mutable_reservation()->set_name(next->name());
    *view.mutable_reservation()->mutable_start() = next->start();
    *view.mutable_reservation()->mutable_end() = next->end();
  }
  return view;
}

std::vector<RankProgress> Views::ProgressOf(const JobEntry& job) const {
  std::vector<RankProgress> all;
  if (!job.running.has_value()) return all;
  for (const RankPlacement& rank : job.newest()->record().ranks()) {
    const auto found = job.running->progress.find(rank.rank());
    if (found == job.running->progress.end() || rank.state() == RANK_STATE_EXITED) continue;
    const RunningGeneration::RankProgress& seen = found->second;
    RankProgress& shown = all.emplace_back();
    shown.set_rank(rank.rank());
    shown.set_step(std::max(seen.step, seen.shown_step));
    shown.set_stalled_seconds(absl::ToDoubleSeconds(seen.stalled));
    shown.set_frozen(seen.frozen);
    if (job.running->plan == nullptr || seen.shown_op == 0) continue;
    shown.set_op(job.running->plan->op_names.at(rank.role().stage()).NameOf(seen.shown_op - 1));
  }
  return all;
}

muster::Stop Views::MakeStop(EndReason reason, const Job& job) const {
  muster::Stop stop;
  stop.set_reason(reason);
  const bool may_write = job.spec().has_exec() || !job.spec().train().checkpoint().path().empty();
  stop.set_checkpoint_first(!IsFault(reason) && may_write);
  *stop.mutable_deadline() = ToProto(generations_->StopDeadline(job.spec(), reason));
  return stop;
}

Assignment Views::MakeAssignment(const JobEntry& job, const Generation& generation, const RankPlacement& rank) const {
  Assignment assignment;
  assignment.mutable_key()->set_job(generation.job());
  assignment.mutable_key()->set_generation(generation.number());
  assignment.mutable_key()->set_rank(rank.rank());
  assignment.set_owner(job.record().owner());
  assignment.set_world(static_cast<uint32_t>(generation.ranks_size()));
  *assignment.mutable_role() = rank.role();
  *assignment.mutable_slots() = rank.slots();
  assignment.set_device(generation.device());
  *assignment.mutable_spec() = SpecOf(job.record(), generation);
  const auto stage = static_cast<int>(rank.role().stage());
  assignment.set_schedule_digest(stage < generation.stage_digests_size() ? generation.stage_digests(stage)
                                                                         : generation.schedule_digest());
  if (generation.has_resume_from()) *assignment.mutable_resume_from() = generation.resume_from();
  *assignment.mutable_collective_deadline() = ToProto(generations_->TimeoutsOf(job.record()).collective);
  for (const LinkPair& pair : generation.measure_links()) {
    if (pair.first() == rank.rank() || pair.second() == rank.rank()) *assignment.add_measure_links() = pair;
  }
  *assignment.mutable_published() = job.record().checkpoints();
  if (rank.rank() == 0)
    assignment.set_checkpoint_request(job.running->checkpoint_request);  // rank 0 informs the other ranks
  if (job.record().spec().has_exec()) AddNodes(generation, rank, assignment);
  if (job.running->traced.contains(rank.rank())) *assignment.mutable_trace() = job.running->trace;
  if (plans_->Find(JobId(generation.job()), Plans::Purpose::kGeneration) != nullptr) {
    assignment.set_table_sha256(generation.table_sha256());  // it can be fetched when the plan is made again
  }
  if (job.running->plan != nullptr) {
    assignment.set_table_sha256(job.running->plan->table_sha256);
    assignment.set_schedule_digest(job.running->plan->digests.at(rank.role().stage()));
  }
  return assignment;
}

Desired Views::DesiredFor(const NodeId& node) const {
  Desired desired;
  const auto found = records_->nodes.find(node);
  if (found != records_->nodes.end()) {
    desired.set_revision(found->second.revision);
    desired.set_preflight(found->second.record().wanted_preflight());
  }
  for (const JobEntry* live : records_->Live()) {
    const JobEntry& job = *live;
    const JobId id = job.id();
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
