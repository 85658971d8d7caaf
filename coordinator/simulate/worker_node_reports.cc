// A worker daemon's reports about its ranks.
#include <algorithm>
#include <utility>
#include <vector>

#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kReportedStall = absl::Seconds(10);  // longer than a step; real daemons report less

bool SameButStep(ObservedRank a, ObservedRank b) {
  a.clear_step();
  b.clear_step();
  return a.SerializeAsString() == b.SerializeAsString();
}

}  // namespace

ObservedRank WorkerNode::Observe(const RankId& rank) const {
  const Local& local = daemon_->ranks.at(rank);
  const Folder& folder = folders_.at(rank);
  const DesiredRank* desired = DesiredOf(rank);
  const bool forgotten = daemon_->fresh && desired == nullptr;
  ObservedRank seen;
  *seen.mutable_key() = agent::KeyOf(rank);
  seen.set_step(local.step);
  const bool drained = local.acknowledged == folder.outbox.size();
  if (folder.exit.has_value() && (drained || forgotten)) {
    seen.set_state(RANK_STATE_EXITED);
    *seen.mutable_exit() = *folder.exit;
  } else if (local.termination != agent::Termination::kNone) {
    seen.set_state(RANK_STATE_STOPPING);
  } else {
    seen.set_state(folder.outbox.empty() ? RANK_STATE_STARTING : RANK_STATE_RUNNING);
  }
  if (const absl::Duration stalled = StalledFor(*folder.process); stalled > absl::ZeroDuration()) {
    const Page& page = folder.process->page;
    seen.set_step(page.step);
    seen.set_op_issued(page.issued);
    seen.set_op_completed(page.completed);
    seen.set_frozen(folder.process->frozen);
    seen.set_stalled_seconds(absl::ToDoubleSeconds(stalled));
  }
  return seen;
}

absl::Duration WorkerNode::StalledFor(const Process& process) const {
  if (!process.alive || !process.met) return absl::ZeroDuration();
  // A restarted daemon reads the page for the first time.
  const absl::Duration stalled = world_->agenda.now() - std::max(process.page.moved, daemon_->started);
  return stalled < kReportedStall ? absl::ZeroDuration() : stalled;
}

bool WorkerNode::AnyStalled() const {
  return std::any_of(daemon_->ranks.begin(), daemon_->ranks.end(), [this](const auto& rank) {
    return StalledFor(*folders_.at(rank.first).process) > absl::ZeroDuration();
  });
}

void WorkerNode::SendObserved(bool full) {
  if (!daemon_->welcomed) return;
  WorkerMessage message;
  Observed& observed = *message.mutable_observed();
  observed.set_full(full);
  observed.set_leaving(daemon_->leaving);
  for (auto& [rank, local] : daemon_->ranks) {
    ObservedRank seen = Observe(rank);
    if (!full && local.observed.has_value() && SameButStep(*local.observed, seen) &&
        local.observed->step() == seen.step()) {
      continue;
    }
    local.observed = seen;
    *observed.add_ranks() = std::move(seen);
  }
  StuckRanks stuck;
  for (const auto& [rank, local] : daemon_->ranks) {
    const Folder& folder = folders_.at(rank);
    if (!folder.exit.has_value() || !IsStuck(folder)) continue;
    StuckRank& holder = *stuck.add_ranks();
    *holder.mutable_key() = agent::KeyOf(rank);
    holder.mutable_slots()->Assign(folder.slots.begin(), folder.slots.end());
    holder.set_processes("process 1 (state D)");
  }
  std::string bytes = stuck.SerializeAsString();
  if (full || bytes != daemon_->reported_stuck) *observed.mutable_stuck() = std::move(stuck);
  daemon_->reported_stuck = std::move(bytes);
  if (full || observed.ranks_size() > 0 || observed.has_stuck()) Send(std::move(message));
}

void WorkerNode::ReportAbsent() {
  if (!daemon_->welcomed) return;
  WorkerMessage message;
  for (const DesiredRank& goal : daemon_->desired.ranks()) {
    if (!goal.has_stop() || daemon_->ranks.contains(agent::RankOf(goal.key()))) continue;
    ObservedRank& absent = *message.mutable_observed()->add_ranks();
    *absent.mutable_key() = goal.key();
    absent.set_state(RANK_STATE_EXITED);
    absent.mutable_exit()->set_cause(RankExit::STOPPED);
  }
  if (message.observed().ranks_size() > 0) Send(std::move(message));
}

void WorkerNode::SendNews(bool full) {
  if (!Listens() || !daemon_->welcomed) return;
  std::vector<WorkerMessage> messages;
  for (auto& [rank, local] : daemon_->ranks) {
    const std::vector<Record>& outbox = folders_.at(rank).outbox;
    if (local.sent >= outbox.size()) continue;
    WorkerMessage& message = messages.emplace_back();
    *message.mutable_records()->mutable_key() = agent::KeyOf(rank);
    for (; local.sent < outbox.size(); ++local.sent) *message.mutable_records()->add_records() = outbox[local.sent];
  }
  SendObserved(full);
  for (WorkerMessage& message : messages) Send(std::move(message));
}

void WorkerNode::Append(const RankId& rank, Record record) {
  const auto folder = folders_.find(rank);
  if (folder == folders_.end()) return;
  record.set_sequence(folder->second.outbox.size() + 1);
  folder->second.outbox.push_back(std::move(record));
  Soon([this] { SendNews(false); });
}

void WorkerNode::ReportStep(const RankId& rank, uint64_t step) {
  if (daemon_ == nullptr) return;
  const auto local = daemon_->ranks.find(rank);
  if (local == daemon_->ranks.end()) return;
  local->second.step = step;
  Soon([this] { SendNews(false); });
}

void WorkerNode::ProcessEnded(const RankId& rank, RankExit exit) {
  world_->Trace([&] { return absl::StrCat(id_, ": ", rank.ToString(), " ended: ", exit.ShortDebugString()); });
  const auto folder = folders_.find(rank);
  if (folder == folders_.end()) return;
  folder->second.exit = std::move(exit);
  const auto report = [this] {
    SendNews(false);
    Reconcile();
  };
  Soon(report);
  if (world_->agenda.now() >= holds_until_) return;
  world_->Count("rank stuck");
  folder->second.stuck_until = holds_until_;
  world_->agenda.After(holds_until_ - world_->agenda.now(), [this, report] { Soon(report); });
}

}  // namespace muster::simulate
