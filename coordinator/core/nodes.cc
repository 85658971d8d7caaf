#include "coordinator/core/nodes.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/counted.h"
#include "common/node/node_selector.h"
#include "common/proto_time.h"
#include "common/utf8.h"

namespace muster::core {
namespace {

constexpr size_t kFewestOfMany = 3;

constexpr absl::Duration kRecheckInterval = absl::Seconds(1);
constexpr absl::Duration kForgetAgain = absl::Minutes(1);

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

// No stored field is a steady-clock time: every timer restarts.
bool Nodes::Recover(Now now) {
  health_.Recover(now);
  for (auto& [id, node] : records_->nodes) {
    if (node.machine.state() == NODE_STATE_LIVE) node.machine.GoAway(now);
    if (node.machine.state() == NODE_STATE_AWAY) {
      node.lost_at = now.steady + std::max(options_->timeouts.startup_grace, options_->timeouts.node_grace);
    }
    const bool leaves = node.record().draining() || node.record().leaving();
    if (leaves || node.machine.state() == NODE_STATE_LOST) emptying_.insert(id);
    if (node.machine.state() == NODE_STATE_LOST) node.forget_at = ForgetAt(now);
  }
  return !emptying_.empty();
}

absl::Status Nodes::CheckIdentity(const Node& node) const {
  if (absl::Status status = CheckNodeLabels(node.labels()); !status.ok()) return status;
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
  for (const auto& [id, other] : records_->nodes) {
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

void Nodes::On(const NodeConnected& event, Transaction& transaction) {
  transaction.status = CheckIdentity(event.node);
  if (!transaction.status.ok()) return;
  const NodeId id(event.node.id());
  NodeEntry* known = records_->FindNode(id);
  if (known == nullptr) {
    Node record = event.node;
    record.set_state(NODE_STATE_LIVE);
    record.set_draining(false);
    record.set_leaving(false);
    record.clear_links();
    record.clear_drain_reason();
    record.clear_recent_faults();
    record.clear_faults();
    record.clear_preflight();
    record.clear_wanted_preflight();
    *record.mutable_registered() = ToProto(transaction.now.wall);
    *record.mutable_changed() = ToProto(transaction.now.wall);
    // No rank was ever placed there, so there is nothing to report.
    records_->nodes.emplace(
        id, NodeEntry{.machine = NodeMachine(std::move(record)), .boot = event.node.boot_id(), .reported = true});
    transaction.AddEvent(nullptr, 0, id.value(), "node.joined",
                         absl::StrCat("node ", id.value(), " joined with ",
                                      Counted(static_cast<uint64_t>(event.node.slots_size()), "slot", "slots")));
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
    *fields.mutable_labels() = event.node.labels();
    *fields.mutable_cpu() = event.node.cpu();
    const auto before = fields.slots();
    *fields.mutable_slots() = event.node.slots();
    KeepSpeeds(before, fields);
    known->lost_at.reset();
    known->forget_at.reset();
    known->spared_until.reset();
    known->boot = event.node.boot_id();
    known->reported = false;
    std::erase_if(inbox_, [&](const Report& report) { return report.node == id; });  // reported again
    fields.set_leaving(false);
    if (!known->record().draining()) emptying_.erase(id);
    if (back)
      transaction.AddEvent(nullptr, 0, id.value(), "node.returned", absl::StrCat("node ", id.value(), " is back"));
  }
  for (Slot& slot :
       *records_->FindNode(id)->machine.fields().mutable_slots()) {  // the coordinator computes these fields
    slot.clear_state();
    slot.clear_job();
    if (known == nullptr) slot.clear_flops_per_second();
  }
  health_.Take(id, *records_->FindNode(id), event.preflight.has_value() ? &*event.preflight : nullptr, transaction);
  if (event.time.has_value()) health_.CompareClocks(id, *event.time, transaction);
  transaction.ChangeDesired(id);
  for (const auto& [job, number] : event.generations) {
    Seen& newest = seen_[job];
    if (number > newest.number) newest = {number, id};
  }
}

// A store that was restored from a backup would otherwise give a new generation the number of one that it does not
// know, and the worker would take the records of that one for the new one's. While some are left the transaction is
// full, so that no generation starts.
void Nodes::NoteSeenGenerations(Transaction& transaction) {
  while (!seen_.empty() && !transaction.Full()) {
    const auto [id, seen] = *seen_.begin();
    seen_.erase(seen_.begin());
    JobEntry* job = records_->FindJob(id);
    if (job == nullptr || job->machine.ended() || seen.number <= NewestNumber(job->record())) continue;
    records_->SkipNumbers(*job, seen.number + options_->numbers_skipped, transaction);
    transaction.AddEvent(job, job->record().generation(), seen.node.value(), "job.outdated",
                         absl::StrCat("node ", seen.node.value(), " had ranks of generation ", seen.number, " of ",
                                      id.value(), ", and this store knows ", job->record().generation(),
                                      ": was it restored from a backup? What came later is not known to it"));
  }
}

void Nodes::On(const NodeDisconnected& event, Transaction& transaction) {
  NodeEntry* node = records_->FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) return;
  if (node->machine.state() != NODE_STATE_LIVE) return;
  node->machine.GoAway(transaction.now);
  node->lost_at = transaction.now.steady + options_->timeouts.node_grace;
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.away",
                       absl::StrCat("node ", event.node.value(), " is away; its ranks are assumed to keep running"));
}

void Nodes::On(const NodeObserved& event, Transaction& transaction) {
  NodeEntry* node = records_->FindNode(event.node);
  if (node == nullptr || node->record().incarnation() != event.incarnation.value()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a report of node ", event.node.value(), " from an incarnation that was replaced"));
    return;
  }
  if (event.observed.leaving() && !node->record().leaving()) {
    node->machine.fields().set_leaving(true);
    emptying_.insert(event.node);
    transaction.Touch(event.node);
    transaction.AddEvent(nullptr, 0, event.node.value(), "node.leaving",
                         absl::StrCat("node ", event.node.value(), " is leaving: its worker daemon is shutting down"));
  }
  if (event.observed.full() || event.observed.has_stuck()) NoteStuck(event.node, *node, event.observed, transaction);
  if (event.observed.has_preflight()) health_.Take(event.node, *node, &event.observed.preflight(), transaction);
  std::set<RankId> reported;
  for (const ObservedRank& seen : event.observed.ranks()) {
    reported.insert({JobId(seen.key().job()), seen.key().generation(), seen.key().rank()});
    inbox_.push_back({event.node, event.incarnation.value(), seen});
  }
  if (!event.observed.full()) return;
  for (ObservedRank& gone : Unreported(event.node, reported, transaction.now)) {
    inbox_.push_back({event.node, event.incarnation.value(), std::move(gone)});
  }
  inbox_.push_back({event.node, event.incarnation.value(), std::nullopt});
}

void Nodes::NoteStuck(const NodeId& id, NodeEntry& node, const Observed& observed, Transaction& transaction) {
  std::map<uint32_t, StuckSlot> stuck;
  for (const StuckRank& rank : observed.stuck().ranks()) {
    const RankId holder{JobId(rank.key().job()), rank.key().generation(), rank.key().rank()};
    for (const uint32_t slot : rank.slots()) stuck[slot] = {holder, rank.processes()};
  }
  std::swap(stuck, node.stuck);
  const std::map<uint32_t, StuckSlot>& before = stuck;
  // One event for all slots of a report, however many they are.
  std::vector<uint32_t> held, freed;
  std::string what;
  for (const auto& [slot, now] : node.stuck) {
    const auto known = before.find(slot);
    if (known != before.end() && known->second.rank == now.rank) continue;
    held.push_back(slot);
    if (!what.empty()) continue;
    what = absl::StrCat("rank ", now.rank.rank, " of generation ", now.rank.generation, " of ", now.rank.job.value(),
                        " was killed and does not end: ", now.processes);
    transaction.Blame(id, now.rank.job, what);
  }
  for (const auto& [slot, then] : before) {
    if (!node.stuck.contains(slot)) freed.push_back(slot);
  }
  const auto slots = [&](const std::vector<uint32_t>& of) {
    return absl::StrCat(of.size() == 1 ? "slot " : "slots ", absl::StrJoin(of, ", "), " of node ", id.value(),
                        of.size() == 1 ? " is " : " are ");
  };
  if (!held.empty()) {
    std::string message = absl::StrCat(what, "; it gets no rank before that has ended");
    if (held.size() > 1) message = absl::StrCat(what, ", and others; they get no ranks before those have ended");
    transaction.AddEvent(nullptr, 0, id.value(), "slot.stuck", absl::StrCat(slots(held), "stuck: ", message));
  }
  if (!freed.empty()) {
    transaction.AddEvent(nullptr, 0, id.value(), "slot.freed", absl::StrCat(slots(freed), "no longer stuck"));
  }
}

void Nodes::ReadInbox(Transaction& transaction) {
  while (!inbox_.empty() && !transaction.Full()) {
    const Report report = std::move(inbox_.front());
    inbox_.pop_front();
    NodeEntry* node = records_->FindNode(report.node);
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

void Nodes::Observe(const NodeId& node, const ObservedRank& seen, Transaction& transaction) {
  JobEntry* job = records_->FindJob(JobId(seen.key().job()));
  // A stale rank is not in the desired state, so its worker kills it.
  if (job == nullptr || job->record().generation() != seen.key().generation()) return;
  const GenerationMachine* generation = job->newest();
  if (generation == nullptr || generation->ended()) return;
  const RankPlacement* rank = generation->rank(seen.key().rank());
  if (rank == nullptr || rank->node() != node.value() || rank->state() == RANK_STATE_EXITED) return;
  generations_->ReportStep(*job, seen.step(), transaction);
  if (seen.state() != RANK_STATE_EXITED) {
    hangs_->Note(*job, records_->nodes.at(node), seen, transaction.now.steady);
    generations_->Report(*job, rank->rank(), seen.state(), transaction);
    return hangs_->Check(*job, rank->rank(), transaction);
  }
  const bool gone = seen.exit().cause() == RankExit::VANISHED || seen.exit().cause() == RankExit::ORPHANED;
  generations_->Exit(*job, rank->rank(), seen.exit(), gone ? END_REASON_LOST : END_REASON_FAILED, transaction);
}

// Ranks that a full report does not list. A rank that has run is gone: the node lost its run directory (a reboot).
// After a reboot, a rank to be started counts as gone too: it may have run, and a rank starts only once. Without a
// reboot the worker has simply not started it yet. A rank to be stopped that never ran was never started, and will not
// be.
std::vector<ObservedRank> Nodes::Unreported(const NodeId& node, const std::set<RankId>& reported, Now now) const {
  std::vector<ObservedRank> unreported;
  const NodeEntry& entry = records_->nodes.at(node);
  const bool rebooted = entry.boot != entry.record().boot_id();
  for (const JobEntry* job : records_->Live()) {
    const JobId id = job->id();
    const GenerationMachine* generation = job->newest();
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
      *exit.mutable_ended() = ToProto(now.wall);
    }
  }
  return unreported;
}

const JobEntry* Nodes::NeededBy(const NodeId& node) const {
  const std::vector<JobEntry*> live = records_->Live();
  const auto found = std::find_if(live.begin(), live.end(), [&](JobEntry* job) {
    if (!job->machine.active() || job->newest()->ended()) return false;
    const auto& ranks = job->newest()->record().ranks();
    return std::any_of(ranks.begin(), ranks.end(), [&](const RankPlacement& r) { return r.node() == node.value(); });
  });
  return found == live.end() ? nullptr : *found;
}

void Nodes::Empty(Transaction& transaction) {
  if (emptying_.empty()) return;
  for (JobEntry* live : records_->Live()) {
    JobEntry& job = *live;
    for (const NodeId& node : emptying_) {
      if (!job.machine.active()) break;
      const GenerationMachine& generation = *job.newest();
      const auto& ranks = generation.record().ranks();
      const bool here = !generation.ended() && std::any_of(ranks.begin(), ranks.end(), [&](const RankPlacement& r) {
        return r.node() == node.value() && r.state() != RANK_STATE_EXITED;
      });
      if (!here) continue;
      const bool lost = records_->nodes.at(node).machine.state() == NODE_STATE_LOST;
      if (!lost && generation.state() == GENERATION_STATE_STOPPING) continue;
      if (transaction.Full()) return;
      if (lost) {
        LoseRanks(job, node, transaction);
      } else {
        generations_->Stop(job, END_REASON_DRAINED, STOP_INTENT_REQUEUE,
                           absl::StrCat("node ", node.value(),
                                        records_->nodes.at(node).record().leaving() ? " is leaving" : " is drained"),
                           transaction);
      }
    }
  }
  // No new ranks are placed on these nodes, so they stay empty.
  emptying_.clear();
}

void Nodes::LoseRanks(JobEntry& job, const NodeId& node, Transaction& transaction) {
  std::vector<uint32_t> lost;
  for (const RankPlacement& rank : job.newest()->record().ranks()) {
    if (rank.node() == node.value() && rank.state() != RANK_STATE_EXITED) lost.push_back(rank.rank());
  }
  for (const uint32_t rank : lost) {
    RankExit exit;
    exit.set_cause(RankExit::VANISHED);
    exit.set_message(absl::StrCat("node ", node.value(), " is lost, and rank ", rank, " with it"));
    *exit.mutable_ended() = ToProto(transaction.now.wall);
    generations_->Exit(job, rank, std::move(exit), END_REASON_LOST, transaction);
  }
}

void Nodes::On(const DrainNode& event, Transaction& transaction) {
  NodeEntry* node = records_->NeedNode(event.node, transaction);
  if (node == nullptr || node->record().draining()) return;
  node->machine.fields().set_draining(true);
  emptying_.insert(event.node);
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.draining",
                       absl::StrCat("node ", event.node.value(), " takes no new ranks"));
}

// Also what the node has lacked may be there now.
void Nodes::On(const UndrainNode& event, Transaction& transaction) {
  NodeEntry* node = records_->NeedNode(event.node, transaction);
  if (node == nullptr) return;
  DropFaults(*node, [](const NodeFault&, SteadyTime) { return true; });
  transaction.Touch(event.node);
  forgiven_.insert(event.node);
  health_.AskAgain(event.node, *node, transaction);
  if (!node->record().draining()) return;
  node->machine.fields().set_draining(false);
  node->machine.fields().clear_drain_reason();
  if (node->machine.state() != NODE_STATE_LOST) emptying_.erase(event.node);
  transaction.Touch(event.node);
  transaction.AddEvent(nullptr, 0, event.node.value(), "node.undrained",
                       absl::StrCat("node ", event.node.value(), " takes ranks again"));
}

void Nodes::ForgiveRefusals(Transaction& transaction) {
  if (forgiven_.empty()) return;
  const auto is_over = [&](const NodeRefusal& refusal) { return forgiven_.contains(NodeId(refusal.node())); };
  for (JobEntry* job : records_->Live()) {
    const auto& known = job->record().refused_by();
    if (std::none_of(known.begin(), known.end(), is_over)) continue;
    if (transaction.Full()) return;
    auto& refusals = *job->machine.fields().mutable_refused_by();
    refusals.erase(std::remove_if(refusals.begin(), refusals.end(), is_over), refusals.end());
    transaction.Touch(job->id());
  }
  forgiven_.clear();
}

void Nodes::On(const ForgetNode& event, Transaction& transaction) {
  const NodeEntry* node = records_->FindNode(event.node);
  if (node == nullptr) return;
  if (node->machine.state() == NODE_STATE_LIVE) {
    transaction.status =
        absl::FailedPreconditionError(absl::StrCat("node ", event.node.value(), " is live: stop its worker first"));
    return;
  }
  if (const JobEntry* job = NeededBy(event.node); job != nullptr) {
    const bool away = node->machine.state() == NODE_STATE_AWAY;
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        "node ", event.node.value(),
        away
            ? " is away and may still run ranks: forget it when it is lost"
            : absl::StrCat(" had ranks of ", job->record().id(), ", and others of them have not ended: forget it when ",
                           "they have (muster describe ", job->record().id(), ")")));
    return;
  }
  Forget(event.node, "on request", transaction);
}

// REQUIRES: NeededBy finds no job.
void Nodes::Forget(const NodeId& id, const std::string& why, Transaction& transaction) {
  records_->nodes.erase(id);
  emptying_.erase(id);
  health_.Forget(id);
  transaction.nodes.erase(id);
  transaction.deleted_keys.push_back(NodeKey(id));
  for (auto& [other, node] : records_->nodes) {
    node.links_measured.erase(id.value());
    auto& links = *node.machine.fields().mutable_links();
    const auto kept =
        std::remove_if(links.begin(), links.end(), [&](const NodeLink& link) { return link.node() == id.value(); });
    if (kept == links.end()) continue;
    links.erase(kept, links.end());
    if (!transaction.Full()) transaction.Touch(other);  // else it is stored with the node's next change
  }
  transaction.AddEvent(nullptr, 0, id.value(), "node.forgotten",
                       absl::StrCat("node ", id.value(), " is forgotten ", why));
}

std::optional<SteadyTime> Nodes::ForgetAt(Now now) const {
  if (options_->forget_lost_after == absl::InfiniteDuration()) return std::nullopt;
  return now.steady + options_->forget_lost_after;
}

void Nodes::ForgetLost(Transaction& transaction) {
  std::vector<NodeId> due;
  for (const auto& [id, node] : records_->nodes) {
    const bool lost = node.machine.state() == NODE_STATE_LOST && node.forget_at.has_value();
    if (lost && *node.forget_at <= transaction.now.steady) due.push_back(id);
  }
  for (const NodeId& id : due) {
    if (transaction.Full()) return;
    if (NeededBy(id) != nullptr) {
      records_->nodes.at(id).forget_at = transaction.now.steady + kForgetAgain;
      continue;
    }
    Forget(id, absl::StrCat("after ", absl::FormatDuration(options_->forget_lost_after), " of absence"), transaction);
  }
}

void Nodes::JudgeFaults(Transaction& transaction) {
  for (const NodeId& drained : health_.Judge(transaction)) emptying_.insert(drained);
}

std::string Nodes::ManyAway() const {
  size_t away = 0, live = 0;
  for (const auto& [id, node] : records_->nodes) {
    away += node.machine.state() == NODE_STATE_AWAY ? 1 : 0;
    live += node.machine.state() == NODE_STATE_LIVE ? 1 : 0;
  }
  if (away < kFewestOfMany || away * 10 <= (away + live) * 3) return "";
  return absl::StrCat(away, " of ", away + live, " nodes");
}

void Nodes::LoseOrSpare(const NodeId& id, NodeEntry& node, const std::string& many_away, Transaction& transaction) {
  const bool first = !node.spared_until.has_value();
  // The node's grace period of node_grace has just passed.
  const absl::Duration more = options_->timeouts.mass_grace - options_->timeouts.node_grace;
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
  node.forget_at = ForgetAt(transaction.now);
  emptying_.insert(id);
  transaction.Touch(id);
  transaction.Blame(id, JobId(), "contact was lost");
  transaction.AddEvent(nullptr, 0, id.value(), "node.lost",
                       absl::StrCat("node ", id.value(), " is lost; its ranks are treated as failed"));
}

void Nodes::CheckAway(Transaction& transaction) {
  health_.ForgetOld(transaction);
  const std::string many_away = ManyAway();
  for (auto& [id, node] : records_->nodes) {
    if (node.machine.state() != NODE_STATE_AWAY || !node.lost_at.has_value()) continue;
    if (transaction.now.steady < *node.lost_at || transaction.Full()) continue;
    node.lost_at.reset();
    LoseOrSpare(id, node, many_away, transaction);
  }
}

}  // namespace muster::core
