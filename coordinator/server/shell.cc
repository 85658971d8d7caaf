#include "coordinator/server/shell.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/tls/token.h"
#include "common/utf8.h"
#include "coordinator/server/fatal.h"

namespace muster::server {
namespace {

constexpr absl::Duration kFlushAfter = absl::Milliseconds(100);
constexpr size_t kFlushItems = 1000;
constexpr absl::Duration kPruneInterval = absl::Seconds(1);
constexpr size_t kAuditMessageBytes = 512;
constexpr char kHidden[] = "(hidden: it has a token in it)";
constexpr absl::Duration kPrunePause = absl::Milliseconds(20);  // between two portions

void LogChange(const StateEvent& change, absl::string_view cause) {
  std::vector<LogField> fields = {{"event", change.kind()}};
  if (!change.job().empty()) fields.emplace_back("job", change.job());
  if (change.generation() != 0) fields.emplace_back("generation", change.generation());
  if (!change.node().empty()) fields.emplace_back("node", change.node());
  fields.emplace_back("cause", cause);
  fields.emplace_back("reason", change.message());
  LogInfo("state changed", fields);
}

}  // namespace

const core::Core& Turn::core() const { return *shell_->core_; }
Ledger& Turn::ledger() { return *shell_->ledger_; }
Watches& Turn::watches() { return shell_->watches_; }
WorkerSessions& Turn::workers() { return shell_->workers_; }
Rendezvous& Turn::rendezvous() { return shell_->rendezvous_; }
SyncCalls& Turn::sync_calls() { return shell_->sync_calls_; }
Tables& Turn::tables() { return shell_->tables_; }
Traces& Turn::traces() { return shell_->traces_; }

const core::Outcome& Turn::Handle(const core::Event& event) {
  core::Outcome& outcome = outcomes_.emplace_back(shell_->core_->Handle(event, now_));
  if (!outcome.status.ok()) {
    LogDebug("event refused", {{"event", core::NameOf(event)}, {"error", outcome.status}});
  } else if (!outcome.events.empty()) {
    for (const StateEvent& change : outcome.events) LogChange(change, core::NameOf(event));
  } else if (!outcome.reason.empty() && !outcome.rows.empty()) {
    LogInfo("state changed", {{"cause", core::NameOf(event)}, {"reason", outcome.reason}});
  }
  return outcome;
}

bool Turn::Changes(const core::Outcome& outcome) {
  return outcome.status.ok() && !(outcome.rows.empty() && outcome.events.empty() && outcome.actions.empty());
}

void Turn::Audit(AuditEntry entry, const absl::Status& status, bool changed) {
  const std::optional<uint64_t> left_out = shell_->audit_limit_.Admit(entry.user(), changed, now_.steady);
  if (!left_out.has_value()) return;
  entry.set_left_out(*left_out);
  *entry.mutable_time() = ToProto(now_.wall);
  entry.set_code(absl::StatusCodeToString(status.code()));
  for (std::string& detail : *entry.mutable_details()) {
    if (tls::HoldsToken(detail)) detail = kHidden;
  }
  // Messages about what was sent repeat it, and it may be a secret.
  if (!status.ok() && !absl::IsInvalidArgument(status)) {
    const std::string message(status.message());
    entry.set_message(tls::HoldsToken(message) ? kHidden : CleanText(message, kAuditMessageBytes));
  }
  audit_.emplace(outcomes_.size(), std::move(entry));
}

absl::StatusOr<std::unique_ptr<Shell>> Shell::Start(const LoopOptions& options, const Clock* clock, CorePlans* plans,
                                                    std::unique_ptr<Ledger> ledger) {
  absl::StatusOr<std::vector<store::KeyValue>> stored = ledger->Rows();
  if (!stored.ok()) return stored.status();
  std::vector<core::Row> rows;
  rows.reserve(stored->size());
  for (store::KeyValue& row : *stored) rows.push_back({std::move(row.key), std::move(row.value)});
  absl::StatusOr<std::unique_ptr<core::Core>> core = core::Core::Recover(options.core, rows, clock->Read());
  if (!core.ok()) {
    return absl::Status(core.status().code(), absl::StrCat(options.state_dir, "/state.db: ", core.status().message()));
  }
  // A crash between the deletion of a job and that of its history leaves the history.
  const uint64_t all = ledger->last_sequence() + 1;
  for (const JobId& job : ledger->Jobs()) {
    if ((*core)->Stored(job) != nullptr) continue;
    const absl::Status status = ledger->Forget(job, all);
    if (!status.ok() && !absl::IsResourceExhausted(status)) return status;  // on a full disk at a later start
  }
  return std::unique_ptr<Shell>(new Shell(options, clock, plans, std::move(ledger), *std::move(core)));
}

Shell::Shell(const LoopOptions& options, const Clock* clock, CorePlans* plans, std::unique_ptr<Ledger> ledger,
             std::unique_ptr<core::Core> core)
    : clock_(clock),
      state_dir_(options.state_dir),
      plans_(plans),
      observer_(options.observer),
      ledger_(std::move(ledger)),
      core_(std::move(core)),
      watches_(ledger_.get()),
      workers_(options.workers, ledger_.get()),
      next_prune_(clock->Read().steady),
      next_liveness_(next_prune_),
      liveness_interval_(std::min(absl::Seconds(1), options.workers.detection / 4)) {}

SteadyTime Shell::NextDeadline() const {
  SteadyTime next = std::min(next_prune_, next_liveness_);
  const auto consider = [&](const std::optional<SteadyTime>& other) { next = std::min(next, other.value_or(next)); };
  consider(core_->NextTick());
  consider(rendezvous_.NextDeadline());
  consider(sync_calls_.NextDeadline());
  consider(traces_.NextDeadline());
  consider(watches_.NextDeadline());
  if (staged_since_.has_value()) consider(*staged_since_ + kFlushAfter);
  return next;
}

void Shell::DoTurn(const std::deque<std::function<void(Turn&)>>& work) {
  Turn turn(this, clock_->Read());
  if (ledger_->restored_copy()) turn.Handle(core::StoreRestored{});
  for (const std::function<void(Turn&)>& piece : work) piece(turn);
  const std::optional<SteadyTime> tick = core_->NextTick();
  if (tick.has_value() && *tick <= turn.now().steady) turn.Handle(core::Tick{});
  if (next_liveness_ <= turn.now().steady) {
    workers_.CheckLiveness(turn);
    next_liveness_ = turn.now().steady + liveness_interval_;
  }
  sync_calls_.AskAgain(turn);
  Commit(turn);
  // Callbacks may add more callbacks.
  while (!turn.after_commit_.empty()) {
    const std::function<void()> answer = std::move(turn.after_commit_.front());
    turn.after_commit_.pop_front();
    answer();
  }
  for (const core::Outcome& outcome : turn.outcomes_) {
    for (const core::Action& action : outcome.actions) Act(action);
  }
  const SteadyTime now = clock_->Read().steady;
  rendezvous_.Expire(now);
  traces_.Expire(now);
  FlushIfDue(now, /*stopping=*/false);
  Publish();
  const absl::StatusOr<bool> more = watches_.Serve(*core_, now);
  if (!more.ok()) EndProcess("reading the stream", more.status());
  readers_wait_ = *more;
  PruneIfDue(now);
  if (observer_ != nullptr) observer_->TurnEnded(clock_->Read().steady - turn.now().steady);
}

void Shell::Commit(Turn& turn) {
  commit_sequence_ = ledger_->last_sequence();
  std::vector<Transaction> transactions;
  const auto add_audit = [&](size_t outcomes, Transaction& transaction) {
    const auto [begin, end] = turn.audit_.equal_range(outcomes);
    for (auto at = begin; at != end; ++at) transaction.audit.push_back(std::move(at->second));
  };
  if (turn.audit_.contains(0)) add_audit(0, transactions.emplace_back());
  for (size_t i = 0; i < turn.outcomes_.size(); ++i) {
    core::Outcome& outcome = turn.outcomes_[i];
    if (outcome.rows.empty() && outcome.events.empty() && !turn.audit_.contains(i + 1)) continue;
    Transaction& transaction = transactions.emplace_back();
    add_audit(i + 1, transaction);
    for (core::RowChange& row : outcome.rows) transaction.rows.push_back({row.key, std::move(row.value)});
    transaction.events = std::move(outcome.events);
  }
  const SteadyTime began = clock_->Read().steady;
  if (absl::Status status = ledger_->Commit(transactions); !status.ok()) EndProcess("the commit", status);
  if (observer_ == nullptr || transactions.empty()) return;
  std::vector<StateEvent> events;
  for (Transaction& transaction : transactions) {
    events.insert(events.end(), std::make_move_iterator(transaction.events.begin()),
                  std::make_move_iterator(transaction.events.end()));
  }
  observer_->Committed(clock_->Read().steady - began, events, *core_);
}

void Shell::Act(const core::Action& action) {
  if (const auto* send = std::get_if<core::SendDesired>(&action)) {
    workers_.SendDesired(*core_, send->node);
  } else if (const auto* close = std::get_if<core::CloseStream>(&action)) {
    workers_.CloseStream(*close);
  } else if (const auto* end = std::get_if<core::EndGeneration>(&action)) {
    rendezvous_.End({end->job, end->generation});
    tables_.End({end->job, end->generation});
    traces_.End({end->job, end->generation});
  } else if (const auto* forget = std::get_if<core::ForgetJob>(&action)) {
    const absl::Status status = ledger_->Forget(forget->job, commit_sequence_ + 1);
    // On a full disk the history of the deleted job is left until a later start.
    if (!status.ok() && !absl::IsResourceExhausted(status)) EndProcess("forgetting a job", status);
    watches_.Wake({forget->job});
    if (observer_ != nullptr) observer_->Forgot(forget->job);
  } else if (const auto* again = std::get_if<core::AskSyncAgain>(&action)) {
    sync_calls_.Wake(*again);
  } else if (const auto* request = std::get_if<core::RequestPlan>(&action)) {
    plans_->Request(*request);
  } else if (const auto* cancel = std::get_if<core::CancelPlan>(&action)) {
    plans_->Cancel(cancel->key);
  }
}

void Shell::Finish() { FlushIfDue(clock_->Read().steady, /*stopping=*/true); }

void Shell::FlushIfDue(SteadyTime now, bool stopping) {
  if (ledger_->staged() == 0) {
    staged_since_.reset();
    return;
  }
  if (!staged_since_.has_value()) staged_since_ = now;
  if (!stopping && ledger_->staged() < kFlushItems && now - *staged_since_ < kFlushAfter) return;
  const uint64_t dropped = ledger_->dropped();
  if (absl::Status status = ledger_->Flush(); !status.ok()) EndProcess("storing metrics and logs", status);
  staged_since_.reset();
  if (const bool full = ledger_->dropped() != dropped; full != std::exchange(disk_full_, full)) {
    if (full) {
      LogError("the disk is full: metrics and logs are dropped until there is room; jobs go on",
               {{"folder", state_dir_}});
    } else {
      LogInfo("metrics and logs are stored again", {{"dropped", dropped}});
    }
  }
  if (observer_ != nullptr) observer_->Dropped(ledger_->dropped() - dropped);
}

// Acknowledges what is stored, and wakes its readers.
void Shell::Publish() {
  workers_.Acknowledge(ledger_->TakeStoredInput());
  watches_.Wake(ledger_->TakeChangedJobs());
}

void Shell::PruneIfDue(SteadyTime now) {
  if (now < next_prune_) return;
  const absl::StatusOr<bool> more = ledger_->Prune([this] { return core_->EndedJobs(); });
  if (!more.ok() && !absl::IsResourceExhausted(more.status())) EndProcess("pruning the history", more.status());
  next_prune_ = now + (more.value_or(false) ? kPrunePause : kPruneInterval);
}

}  // namespace muster::server
