// Nodes: connection, reports, drain and loss.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/proto_time.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

constexpr size_t kFewestOfMany = 3;
constexpr absl::Duration kRecheckInterval = absl::Seconds(1);

}  // namespace

absl::Status Core::State::CheckIdentity(const Node& node) const {
  if (node.id().empty() || node.incarnation().empty()) {
    return absl::InvalidArgumentError("a worker's hello needs a node id and an incarnation");
  }
  std::set<uint32_t> indices;
  for (const Slot& slot : node.slots()) {
    if (!indices.insert(slot.index()).second || (slot.device() != DEVICE_CPU && slot.device() != DEVICE_CUDA)) {
      return absl::InvalidArgumentError(
          absl::StrCat("slot ", slot.index(), " of node ", node.id(), " comes twice, or is neither cpu nor cuda"));
    }
  }
  for (const auto& [id, other] : nodes) {
    if (other.machine.state() != NODE_STATE_LIVE) continue;
    const Node& o = other.record();
    if (o.id() == node.id()) {
      if (o.incarnation() != node.incarnation() && (other.boot != node.boot_id() || o.hostname() != node.hostname())) {
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

namespace {

// Speeds that ranks measured on a slot stay valid as long as the slot is the same device.
void KeepSpeeds(const google::protobuf::RepeatedPtrField<Slot>& before, Node& node) {
  for (Slot& slot : *node.mutable_slots()) {
    slot.clear_flops_per_second();
    for (const Slot& old : before) {
      if (old.index() != slot.index() || old.device_uuid() != slot.device_uuid() || old.model() != slot.model() ||
          old.cores() != slot.cores()) {
        continue;
      }
      slot.set_flops_per_second(old.flops_per_second());
    }
  }
}

}  // namespace

void Core::State::On(const NodeConnected& event, Transaction& transaction) {
  transaction.status = CheckIdentity(event.node);
  if (!transaction.status.ok()) return;
  const NodeId id(event.node.id());
  NodeEntry* known = FindNode(id);
  if (known == nullptr) {
    Node record = event.node;
    record.set_state(NODE_STATE_LIVE);
    record.set_draining(false);
    record.set_leaving(false);
    *record.mutable_registered() = ToProto(transaction.now.wall);
    *record.mutable_changed() = ToProto(transaction.now.wall);
    // No rank was ever placed there, so there is nothing to report.
    nodes.emplace(id,
                  NodeEntry{.machine = NodeMachine(std::move(record)), .boot = event.node.boot_id(), .reported = true});
    transaction.AddEvent(nullptr, 0, id.value(), "node.joined",
                         absl::StrCat("node ", id.value(), " joined with ", event.node.slots_size(), " slots"));
  } else {
    const bool back = known->machine.state() != NODE_STATE_LIVE;
    if (known->record().incarnation() != event.node.incarnation() && !back) {
      transaction.Do(
          CloseStream{id, Incarnation(known->record().incarnation()), "replaced by a newer incarnation of this node"});
    }
    known->machine.Return(transaction.now);
    Node& fields = known->machine.fields();
    fields.set_hostname(event.node.hostname());
    fields.set_incarnation(event.node.incarnation());
    fields.set_version(event.node.version());
    *fields.mutable_cpu() = event.node.cpu();
    const auto before = fields.slots();
    *fields.mutable_slots() = event.node.slots();
    KeepSpeeds(before, fields);
    known->lost_at.reset();
    known->spared_until.reset();
    known->boot = event.node.boot_id();
    known->reported = false;
    std::erase_if(inbox, [&](const Report& report) { return report.node == id; });  // reported again
    fields.set_leaving(false);
    if (!known->record().draining()) emptying.erase(id);
    if (back)
      transaction.AddEvent(nullptr, 0, id.value(), "node.returned", absl::StrCat("node ", id.value(), " is back"));
  }
  for (Slot& slot : *FindNode(id)->machine.fields().mutable_slots()) {  // the coordinator computes these fields
    slot.clear_state();
    slot.clear_job();
    if (known == nullptr) slot.clear_flops_per_second();
  }
  transaction.Touch(id);
  transaction.ChangeDesired(id);
}

void Core::State::On(const NodeDisconnected& event, Transaction& transaction) {
  NodeEntry* node = FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) return;
  if (node->machine.state() != NODE_STATE_LIVE) return;
  node->machine.GoAway(transaction.now);
  node->lost_at = transaction.now.steady + options.timeouts.node_grace;
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.away",
                       absl::StrCat("node ", event.node.value(), " is away; its ranks are assumed to keep running"));
}

void Core::State::On(const NodeObserved& event, Transaction& transaction) {
  NodeEntry* node = FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a report of node ", event.node.value(), " from an incarnation that was replaced"));
    return;
  }
  if (event.observed.leaving() && !node->record().leaving()) {
    node->machine.fields().set_leaving(true);
    emptying.insert(event.node);
    transaction.Touch(event.node);
    transaction.AddEvent(nullptr, 0, event.node.value(), "node.leaving",
                         absl::StrCat("node ", event.node.value(), " is leaving: its worker daemon is shutting down"));
  }
  std::set<RankId> reported;
  for (const ObservedRank& seen : event.observed.ranks()) {
    reported.insert({JobId(seen.key().job()), seen.key().generation(), seen.key().rank()});
    inbox.push_back({event.node, event.incarnation.value(), seen});
  }
  if (!event.observed.full()) return;
  for (ObservedRank& gone : Unreported(event.node, reported, transaction)) {
    inbox.push_back({event.node, event.incarnation.value(), std::move(gone)});
  }
  inbox.push_back({event.node, event.incarnation.value(), std::nullopt});
}

void Core::State::ReadInbox(Transaction& transaction) {
  while (!inbox.empty() && !transaction.Full()) {
    const Report report = std::move(inbox.front());
    inbox.pop_front();
    NodeEntry* node = FindNode(report.node);
    // The successor of a replaced daemon reports everything again.
    if (node == nullptr || node->record().incarnation() != report.incarnation) continue;
    if (report.rank.has_value()) {
      Observe(report.node, *report.rank, transaction);
    } else if (!node->reported) {
      node->reported = true;
      if (node->record().boot_id() != node->boot) transaction.Touch(report.node);
      node->machine.fields().set_boot_id(node->boot);
      transaction.ChangeDesired(report.node);
    }
  }
}

void Core::State::Observe(const NodeId& node, const ObservedRank& seen, Transaction& transaction) {
  JobEntry* job = FindJob(JobId(seen.key().job()));
  // A stale rank is not in the desired state, so its worker kills it.
  if (job == nullptr || job->record().generation() != seen.key().generation()) return;
  const GenerationMachine* generation = job->newest();
  if (generation == nullptr || generation->ended()) return;
  const RankPlacement* rank = generation->rank(seen.key().rank());
  if (rank == nullptr || rank->node() != node.value() || rank->state() == RANK_STATE_EXITED) return;
  NoteStep(*job, seen.step(), transaction);
  if (seen.state() != RANK_STATE_EXITED) {
    NoteProgress(*job, nodes.at(node), seen, transaction.now.steady);
    RankReported(*job, rank->rank(), seen.state(), transaction);
    return CheckHang(*job, rank->rank(), transaction);
  }
  const bool gone = seen.exit().cause() == RankExit::VANISHED || seen.exit().cause() == RankExit::ORPHANED;
  RankEnded(*job, rank->rank(), seen.exit(), gone ? END_REASON_LOST : END_REASON_FAILED, transaction);
}

// Ranks that a full report does not list. A rank that has run is gone: the node lost its run directory (a reboot).
// After a reboot, a rank to be started counts as gone too: it may have run, and a rank starts only once. Without a
// reboot the worker has simply not started it yet. A rank to be stopped that never ran was never started, and will not
// be.
std::vector<ObservedRank> Core::State::Unreported(const NodeId& node, const std::set<RankId>& reported,
                                                  Transaction& transaction) {
  std::vector<ObservedRank> unreported;
  const NodeEntry& entry = nodes.at(node);
  const bool rebooted = entry.boot != entry.record().boot_id();
  for (const auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    const bool stopping = generation->state() == GENERATION_STATE_STOPPING;
    for (const RankPlacement& rank : generation->record().ranks()) {
      if (rank.node() != node.value() || rank.state() == RANK_STATE_EXITED) continue;
      const bool seen_before = rank.state() != RANK_STATE_STARTING || (rebooted && !stopping);
      if (!seen_before && !stopping) continue;
      if (reported.contains({id, generation->record().number(), rank.rank()})) continue;
      ObservedRank& gone = unreported.emplace_back();
      gone.mutable_key()->set_job(id.value());
      gone.mutable_key()->set_generation(generation->record().number());
      gone.mutable_key()->set_rank(rank.rank());
      gone.set_state(RANK_STATE_EXITED);
      RankExit& exit = *gone.mutable_exit();
      exit.set_cause(seen_before ? RankExit::VANISHED : RankExit::STOPPED);
      exit.set_message(absl::StrCat("rank ", rank.rank(), seen_before ? " is no longer known" : " was never started"));
      *exit.mutable_ended() = ToProto(transaction.now.wall);
    }
  }
  return unreported;
}

void Core::State::EmptyNodes(Transaction& transaction) {
  if (emptying.empty()) return;
  for (auto& [id, job] : jobs) {
    if (!job.machine.active()) continue;
    for (const NodeId& node : emptying) {
      const GenerationMachine& generation = *job.newest();
      const auto& ranks = generation.record().ranks();
      const bool here = !generation.ended() && std::any_of(ranks.begin(), ranks.end(), [&](const RankPlacement& r) {
        return r.node() == node.value() && r.state() != RANK_STATE_EXITED;
      });
      if (!here) continue;
      const bool lost = nodes.at(node).machine.state() == NODE_STATE_LOST;
      if (!lost && generation.state() == GENERATION_STATE_STOPPING) continue;
      if (transaction.Full()) return;
      if (lost) {
        LoseRanks(job, node, transaction);
      } else {
        Stop(job, END_REASON_DRAINED, STOP_INTENT_REQUEUE,
             absl::StrCat("node ", node.value(), nodes.at(node).record().leaving() ? " is leaving" : " is drained"),
             transaction);
      }
    }
  }
  // No new ranks are placed on these nodes, so they stay empty.
  emptying.clear();
}

void Core::State::LoseRanks(JobEntry& job, const NodeId& node, Transaction& transaction) {
  std::vector<uint32_t> lost;
  for (const RankPlacement& rank : job.newest()->record().ranks()) {
    if (rank.node() == node.value() && rank.state() != RANK_STATE_EXITED) lost.push_back(rank.rank());
  }
  for (const uint32_t rank : lost) {
    RankExit exit;
    exit.set_cause(RankExit::VANISHED);
    exit.set_message(absl::StrCat("node ", node.value(), " is lost, and rank ", rank, " with it"));
    *exit.mutable_ended() = ToProto(transaction.now.wall);
    RankEnded(job, rank, std::move(exit), END_REASON_LOST, transaction);
  }
}

void Core::State::On(const DrainNode& event, Transaction& transaction) {
  NodeEntry* node = NeedNode(event.node, transaction);
  if (node == nullptr || node->record().draining()) return;
  node->machine.fields().set_draining(true);
  emptying.insert(event.node);
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.draining",
                       absl::StrCat("node ", event.node.value(), " takes no new ranks"));
}

void Core::State::On(const UndrainNode& event, Transaction& transaction) {
  NodeEntry* node = NeedNode(event.node, transaction);
  if (node == nullptr || !node->record().draining()) return;
  node->machine.fields().set_draining(false);
  if (node->machine.state() != NODE_STATE_LOST) emptying.erase(event.node);
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.undrained",
                       absl::StrCat("node ", event.node.value(), " takes ranks again"));
}

std::string Core::State::ManyAway() const {
  size_t away = 0, live = 0;
  for (const auto& [id, node] : nodes) {
    away += node.machine.state() == NODE_STATE_AWAY ? 1 : 0;
    live += node.machine.state() == NODE_STATE_LIVE ? 1 : 0;
  }
  if (away < kFewestOfMany || away * 10 <= (away + live) * 3) return "";
  return absl::StrCat(away, " of ", away + live, " nodes");
}

void Core::State::LoseOrSpare(const NodeId& id, NodeEntry& node, const std::string& many_away,
                              Transaction& transaction) {
  const bool first = !node.spared_until.has_value();
  // The node's grace period of node_grace has just passed.
  const absl::Duration more = options.timeouts.mass_grace - options.timeouts.node_grace;
  if (first) node.spared_until = transaction.now.steady + more;
  if (!many_away.empty() && transaction.now.steady < *node.spared_until) {
    // Rounded so that all of them are checked in the same tick.
    const int64_t step = absl::ToInt64Nanoseconds(kRecheckInterval);
    const int64_t next = (transaction.now.steady.nanoseconds() / step + 1) * step;
    node.lost_at = std::min(SteadyTime::FromNanoseconds(next), *node.spared_until);
    if (!first) return;
    return transaction.AddEvent(
        nullptr, 0, id.value(), "node.spared",
        absl::StrCat("node ", id.value(), " is not marked lost for up to ", absl::FormatDuration(more), ": ", many_away,
                     " are away at once, which suggests a network failure"));
  }
  node.machine.Lose(transaction.now);
  emptying.insert(id);
  transaction.Touch(id);
  transaction.AddEvent(nullptr, 0, id.value(), "node.lost",
                       absl::StrCat("node ", id.value(), " is lost; its ranks are treated as failed"));
}

void Core::State::On(const Tick&, Transaction& transaction) {
  const auto due = [&](std::optional<SteadyTime>& timer) {
    if (!timer.has_value() || transaction.now.steady < *timer || transaction.Full()) return false;
    timer.reset();
    return true;
  };
  const std::string many_away = ManyAway();
  for (auto& [id, node] : nodes) {
    if (node.machine.state() == NODE_STATE_AWAY && due(node.lost_at)) LoseOrSpare(id, node, many_away, transaction);
  }
  for (auto& [id, job] : jobs) {
    if (job.machine.state() == JOB_STATE_STARTING && due(job.start_deadline)) CheckStart(job, transaction);
    if (job.machine.state() == JOB_STATE_STOPPING && due(job.stop_overdue)) CheckStop(job, transaction);
    if (job.machine.state() == JOB_STATE_RUNNING && due(job.grow_at)) CheckGrowth(job, transaction);
    if (job.whole_until.has_value() && *job.whole_until <= transaction.now.steady) job.whole_until.reset();
    // Schedule runs next and starts those that it can.
    if (job.not_before.has_value() && *job.not_before <= transaction.now.steady) job.not_before.reset();
  }
}

namespace {

// "0 on n, rank 3 on m and 5 more".
std::string Names(const Generation& generation, const std::vector<uint32_t>& ranks) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> named;
  for (const uint32_t rank : ranks) {
    if (named.size() == kNamed) break;
    named.push_back(absl::StrCat(rank, " on ", generation.ranks(static_cast<int>(rank)).node()));
  }
  const size_t more = ranks.size() - named.size();
  return absl::StrCat(absl::StrJoin(named, ", rank "), more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

template <typename Matches>
std::vector<uint32_t> RanksThat(const Generation& generation, const Matches& matches) {
  std::vector<uint32_t> ranks;
  for (const RankPlacement& rank : generation.ranks()) {
    if (matches(rank)) ranks.push_back(rank.rank());
  }
  return ranks;
}

}  // namespace

absl::Status Core::State::CheckCurrent(const RankId& rank) const {
  const auto job = jobs.find(rank.job);
  const GenerationMachine* newest = job == jobs.end() ? nullptr : job->second.newest();
  if (newest == nullptr || newest->ended() || newest->record().number() != rank.generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", rank.generation, " is not the current one of job ", rank.job.value()));
  }
  if (newest->rank(rank.rank) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(rank.ToString(), ": there is no such rank"));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> Core::State::MissingRanks(const JobEntry& job) {
  if (job.newest() == nullptr || job.arrived.empty()) return {};
  return RanksThat(job.newest()->record(), [&](const RankPlacement& rank) {
    return rank.state() == RANK_STATE_STARTING && !job.arrived.contains(rank.rank());
  });
}

std::string Core::State::NamesOfMissing(const JobEntry& job) {
  const std::vector<uint32_t> missing = MissingRanks(job);
  if (missing.empty()) return "";
  return absl::StrCat("rank ", Names(job.newest()->record(), missing),
                      missing.size() == 1 ? " has not arrived yet" : " have not arrived yet");
}

// Called at the start deadline of a generation.
void Core::State::CheckStart(JobEntry& job, Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  // The missing ranks, if some have arrived; those wait in the rendezvous and are not at fault.
  std::vector<uint32_t> late = MissingRanks(job);
  const char* what = late.empty() ? "did not start to train within " : "did not arrive at the rendezvous within ";
  if (late.empty()) {
    late = RanksThat(generation, [](const RankPlacement& rank) { return rank.state() == RANK_STATE_STARTING; });
  }
  Failure failure;
  failure.set_generation(generation.number());
  failure.set_rank(late.front());
  failure.set_node(generation.ranks(static_cast<int>(late.front())).node());
  failure.mutable_exit()->set_cause(RankExit::FAILED);
  failure.mutable_exit()->set_message(
      absl::StrCat(what, absl::FormatDuration(TimeoutsOf(job.record()).start), ": rank ", Names(generation, late)));
  failure.set_hint(absl::StrCat("its output: muster logs ", job.record().id(), " --rank ", late.front()));
  const std::string why = failure.exit().message();
  *job.machine.fields().mutable_failure() = std::move(failure);
  Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, why, transaction);
}

// Called after twice the worker's own deadline. The core has nothing left to send, so it informs users.
void Core::State::CheckStop(JobEntry& job, Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  const std::string why = absl::StrCat(
      "overdue, still running: rank ",
      Names(generation,
            RanksThat(generation, [](const RankPlacement& rank) { return rank.state() != RANK_STATE_EXITED; })),
      "; its worker should have killed it: see the worker's log, or restart the worker");
  ChangeIntent(job, job.record().stop_intent(), why, transaction);
}

Core::State::Holders Core::State::SlotHolders() const {
  Holders holders;
  for (const auto& [id, job] : jobs) {
    const GenerationMachine* generation = job.newest();
    if (generation == nullptr || generation->ended()) continue;
    for (const RankPlacement& rank : generation->record().ranks()) {
      const SlotState state = rank.state() == RANK_STATE_STARTING ? SLOT_STATE_RESERVED : SLOT_STATE_USED;
      for (const uint32_t slot : rank.slots()) holders[NodeId(rank.node())][slot] = {id, state};
    }
  }
  return holders;
}

std::vector<Slot> Core::State::SlotsOf(const NodeEntry& node, const Holders& holders) {
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
    if (node.machine.state() != NODE_STATE_LIVE) slot.set_state(SLOT_STATE_UNKNOWN);
  }
  return slots;
}

}  // namespace muster::core
