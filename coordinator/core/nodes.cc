// Nodes: who is there, what they see, and what follows when they go.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/state.h"

namespace muster::core {

absl::Status Core::State::CheckIdentity(const Node& node) const {
  if (node.id().empty() || node.incarnation().empty()) {
    return absl::InvalidArgumentError("a worker's hello needs a node id and an incarnation");
  }
  for (const auto& [id, other] : nodes) {
    if (other.machine.state() != NODE_STATE_LIVE) continue;
    const Node& o = other.record();
    if (o.id() == node.id()) {
      if (o.incarnation() != node.incarnation() && (o.boot_id() != node.boot_id() || o.hostname() != node.hostname())) {
        return absl::AlreadyExistsError(absl::StrCat("node id ", node.id(), " is held by a live worker on ",
                                                     o.hostname(), "; give this worker a state directory of its own"));
      }
      continue;
    }
    for (const Slot& mine : node.slots()) {
      for (const Slot& theirs : o.slots()) {
        if (!mine.device_uuid().empty() && mine.device_uuid() == theirs.device_uuid()) {
          return absl::AlreadyExistsError(
              absl::StrCat("device ", mine.device_uuid(), " is held by the live node ", o.id()));
        }
      }
    }
  }
  return absl::OkStatus();
}

void Core::State::On(const NodeConnected& event, Turn& turn) {
  turn.status = CheckIdentity(event.node);
  if (!turn.status.ok()) return;
  const NodeId id(event.node.id());
  NodeEntry* known = FindNode(id);
  if (known == nullptr) {
    Node record = event.node;
    record.set_state(NODE_STATE_LIVE);
    record.set_draining(false);
    *record.mutable_registered() = ToTimestamp(turn.now.wall);
    *record.mutable_changed() = ToTimestamp(turn.now.wall);
    nodes.emplace(id, NodeEntry{NodeMachine(std::move(record)), {}, 1});
    turn.Tell(nullptr, 0, id.value(), "node.joined",
              absl::StrCat("node ", id.value(), " joined with ", event.node.slots_size(), " slots"));
  } else {
    const bool back = known->machine.state() != NODE_STATE_LIVE;
    if (known->record().incarnation() != event.node.incarnation() && !back) {
      turn.Do(
          CloseStream{id, Incarnation(known->record().incarnation()), "replaced by a newer incarnation of this node"});
    }
    known->machine.Return(turn.now);
    Node& fields = known->machine.fields();
    fields.set_hostname(event.node.hostname());
    fields.set_incarnation(event.node.incarnation());
    fields.set_boot_id(event.node.boot_id());
    fields.set_version(event.node.version());
    *fields.mutable_slots() = event.node.slots();
    known->lost_at.reset();
    if (back) turn.Tell(nullptr, 0, id.value(), "node.returned", absl::StrCat("node ", id.value(), " is back"));
  }
  turn.Touch(id);
  turn.ChangeDesired(id);
}

void Core::State::On(const NodeDisconnected& event, Turn& turn) {
  NodeEntry* node = FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) return;
  if (node->machine.state() != NODE_STATE_LIVE) return;
  node->machine.GoAway(turn.now);
  node->lost_at = turn.now.steady + options.node_grace;
  turn.Touch(event.node);
  turn.Tell(nullptr, 0, event.node.value(), "node.away",
            absl::StrCat("node ", event.node.value(), " is away; its ranks are thought to go on"));
}

void Core::State::On(const NodeObserved& event, Turn& turn) {
  NodeEntry* node = FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) {
    turn.status = absl::FailedPreconditionError(
        absl::StrCat("a report of node ", event.node.value(), " from an incarnation that was replaced"));
    return;
  }
  std::set<RankId> reported;
  for (const ObservedRank& seen : event.observed.ranks()) {
    const RankId id{JobId(seen.key().job()), seen.key().generation(), seen.key().rank()};
    reported.insert(id);
    JobEntry* job = FindJob(id.job);
    if (job == nullptr || job->record().generation() != id.generation)
      continue;  // absent from desired: it will be killed
    GenerationMachine* generation = job->newest();
    if (generation == nullptr || generation->ended()) continue;
    const RankPlacement* placement = FindRank(generation->record(), id.rank);
    if (placement == nullptr || placement->node() != event.node.value()) continue;
    job->highest_step = std::max(job->highest_step, seen.step());
    if (seen.state() == RANK_STATE_RUNNING) MarkRunning(*job, id.rank, turn);
    if (seen.state() == RANK_STATE_EXITED) RankEnded(*job, id.rank, seen.exit(), turn);
  }
  if (event.observed.full()) VanishUnreported(event.node, reported, turn);
}

// A rank that this node was seen to run, and of which a full report knows nothing: the node lost its run directory
// (a reboot). One that was never seen running is not judged: the worker may not have begun with it yet, and will.
void Core::State::VanishUnreported(const NodeId& node, const std::set<RankId>& reported, Turn& turn) {
  for (auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    const uint64_t number = generation->record().number();
    std::vector<uint32_t> gone;
    for (const RankPlacement& rank : generation->record().ranks()) {
      if (rank.node() != node.value() || rank.state() == RANK_STATE_EXITED || rank.state() == RANK_STATE_STARTING)
        continue;
      if (!reported.contains(RankId{id, number, rank.rank()})) gone.push_back(rank.rank());
    }
    for (const uint32_t rank : gone) {
      RankExit exit;
      exit.set_cause(RankExit::VANISHED);
      exit.set_message(absl::StrCat("rank ", rank, " is no longer known on node ", node.value()));
      *exit.mutable_ended() = ToTimestamp(turn.now.wall);
      RankEnded(job, rank, exit, turn);
    }
  }
}

void Core::State::LoseNode(NodeEntry& node, Turn& turn) {
  const std::string id = node.record().id();
  node.machine.Lose(turn.now);
  node.lost_at.reset();
  turn.Touch(NodeId(id));
  turn.Tell(nullptr, 0, id, "node.lost", absl::StrCat("node ", id, " is lost; its ranks are given up"));
  for (auto& [job_id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    std::vector<uint32_t> lost;
    for (const RankPlacement& rank : generation->record().ranks()) {
      if (rank.node() == id && rank.state() != RANK_STATE_EXITED) lost.push_back(rank.rank());
    }
    for (const uint32_t rank : lost) {
      RankExit exit;
      exit.set_cause(RankExit::VANISHED);
      exit.set_message(absl::StrCat("node ", id, " is lost, and rank ", rank, " with it"));
      *exit.mutable_ended() = ToTimestamp(turn.now.wall);
      RankEnded(job, rank, exit, turn);
    }
  }
}

void Core::State::On(const DrainNode& event, Turn& turn) {
  NodeEntry* node = NeedNode(event.node, turn);
  if (node == nullptr || node->record().draining()) return;
  node->machine.fields().set_draining(true);
  turn.Touch(event.node);
  turn.Tell(nullptr, 0, event.node.value(), "node.draining",
            absl::StrCat("node ", event.node.value(), " takes no new ranks"));
  for (auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    const auto& ranks = generation->record().ranks();
    const bool here = std::any_of(ranks.begin(), ranks.end(), [&](const RankPlacement& r) {
      return r.node() == event.node.value() && r.state() != RANK_STATE_EXITED;
    });
    if (here) Stop(job, END_REASON_DRAINED, STOP_INTENT_REQUEUE, turn);
  }
}

void Core::State::On(const UndrainNode& event, Turn& turn) {
  NodeEntry* node = NeedNode(event.node, turn);
  if (node == nullptr || !node->record().draining()) return;
  node->machine.fields().set_draining(false);
  turn.Touch(event.node);
  turn.Tell(nullptr, 0, event.node.value(), "node.undrained",
            absl::StrCat("node ", event.node.value(), " takes ranks again"));
}

void Core::State::On(const Tick&, Turn& turn) {
  for (auto& [id, node] : nodes) {
    if (node.machine.state() == NODE_STATE_AWAY && node.lost_at.has_value() && *node.lost_at <= turn.now.steady) {
      LoseNode(node, turn);
    }
  }
  for (auto& [id, job] : jobs) {
    if (job.machine.state() != JOB_STATE_STARTING || !job.start_deadline.has_value()) continue;
    if (turn.now.steady < *job.start_deadline) continue;
    job.start_deadline.reset();
    std::vector<std::string> missing;
    Failure failure;
    for (const RankPlacement& rank : job.newest()->record().ranks()) {
      if (rank.state() != RANK_STATE_STARTING) continue;
      if (missing.empty()) {
        failure.set_rank(rank.rank());
        failure.set_node(rank.node());
      }
      missing.push_back(absl::StrCat(rank.rank(), " on ", rank.node()));
    }
    failure.set_generation(job.newest()->record().number());
    failure.mutable_exit()->set_cause(RankExit::FAILED);
    failure.mutable_exit()->set_message(absl::StrCat("never began to train within ",
                                                     absl::FormatDuration(options.start_deadline), ": rank ",
                                                     absl::StrJoin(missing, ", rank ")));
    failure.set_hint(absl::StrCat("its output: muster logs ", id.value()));
    *job.machine.fields().mutable_failure() = failure;
    Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, turn);
  }
  // Schedule, which follows every event, starts those whose back-off is over.
}

std::vector<Slot> Core::State::SlotsOf(const NodeEntry& node) const {
  std::map<uint32_t, std::pair<SlotState, std::string>> taken;
  for (const auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    for (const RankPlacement& rank : generation->record().ranks()) {
      if (rank.node() != node.record().id()) continue;
      const SlotState state = rank.state() == RANK_STATE_STARTING ? SLOT_STATE_RESERVED : SLOT_STATE_USED;
      for (const uint32_t slot : rank.slots()) taken[slot] = {state, id.value()};
    }
  }
  std::vector<Slot> slots(node.record().slots().begin(), node.record().slots().end());
  for (Slot& slot : slots) {
    const auto found = taken.find(slot.index());
    slot.set_state(found == taken.end() ? SLOT_STATE_FREE : found->second.first);
    if (found != taken.end()) slot.set_job(found->second.second);
    if (node.machine.state() != NODE_STATE_LIVE) slot.set_state(SLOT_STATE_UNKNOWN);
  }
  return slots;
}

}  // namespace muster::core
