// The agent's stream to the coordinator.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file/store_files.h"
#include "common/log/log.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "common/version.h"
#include "worker/agent/agent.h"
#include "worker/agent/credentials.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kInContact = absl::Seconds(3);  // the lease is renewed within this time of an answer
constexpr absl::Duration kProgress = absl::Seconds(1);  // minimum interval between reports that differ only in progress
constexpr absl::Duration kSoon = absl::Milliseconds(500);
constexpr absl::Duration kLater = absl::Seconds(10);
constexpr absl::Duration kCheckAgain = absl::Minutes(1);  // after a preflight that found a problem
constexpr absl::Duration kForeign = absl::Seconds(2);     // an operator may have chosen
constexpr size_t kQueued = 64;  // messages waiting for the network; beyond this no more records are read

std::string WithoutProgress(ObservedRank rank) {
  rank.clear_step();
  rank.clear_op_issued();
  rank.clear_op_completed();
  rank.clear_op_exchanges();
  rank.clear_stalled_seconds();
  rank.clear_frozen();
  rank.clear_op();
  return rank.SerializeAsString();
}

// Whether `seen` must be reported to the coordinator, whose last report is `last`.
bool HasChanged(const std::optional<ObservedRank>& last, absl::Duration since, const ObservedRank& seen) {
  if (!last.has_value() || WithoutProgress(*last) != WithoutProgress(seen)) return true;
  return since >= kProgress && last->SerializeAsString() != seen.SerializeAsString();
}

}  // namespace

void Agent::Call() {
  if (foreign_store_) FollowStoreChoice();
  Hello hello;
  hello.set_protocol(kProtocol);
  hello.set_oldest_protocol(kOldestProtocol);
  hello.set_term(term_);
  // Without ranks there is nothing to lose, so any coordinator will do.
  if (!ranks_.empty()) hello.set_store_id(store_id_);
  *hello.mutable_node() = node_;
  if (preflights_->on() || !ProblemsOf(preflight_).empty()) *hello.mutable_preflight() = preflight_;
  *hello.mutable_time() = ToProto(loop_->now().wall);
  for (const rundir::RankDir& dir : rundir::RankDir::List(options_.run_dir)) {
    uint64_t& highest = (*hello.mutable_generations())[dir.rank().job.value()];
    highest = std::max(highest, dir.rank().generation);
  }
  contact_ = Contact::kCalling;
  answered_ = loop_->now().steady;
  stream_->Open(hello);
}

void Agent::CallLater(absl::Duration delay) {
  // Add a jitter of up to a quarter, derived from the incarnation, so that many workers do not reconnect at once.
  const double share = static_cast<double>(std::hash<std::string>()(node_.incarnation()) % 1000) / 4000.0;
  loop_->PostAfter(delay * (1.0 + share), [this] {
    if (!stream_->is_open()) Call();
  });
}

void Agent::Ended(const absl::Status& why) {
  if (leaving_) return loop_->Stop();
  if (contact_ == Contact::kWelcomed) LogWarn("lost the coordinator", {{"error", why}});
  const bool was_welcomed = std::exchange(contact_, Contact::kNone) == Contact::kWelcomed;
  if (absl::IsFailedPrecondition(why) && !was_welcomed) {
    result_ = why;
    LogError("the coordinator refuses this worker", {{"coordinator", options_.coordinator}, {"error", why}});
    return Stop();
  }
  if (absl::IsAborted(why) && !was_welcomed) return MeetForeignStore(why);
  const std::string complaint = why.ToString();
  if (!was_welcomed && complaint != last_complaint_) {
    if (absl::IsUnavailable(why)) {
      LogWarn("cannot reach the coordinator; retrying",
              {{"coordinator", options_.coordinator},
               {"error", WhyUnreachable(options_.coordinator, options_.security, why)}});
    } else {
      LogWarn("the coordinator rejected this worker; retrying",
              {{"coordinator", options_.coordinator}, {"error", why}});
    }
  }
  last_complaint_ = complaint;
  // A refusal needs an operator, so retry slowly; other errors may pass at any moment.
  const bool refused = absl::IsAlreadyExists(why) || absl::IsPermissionDenied(why) || absl::IsUnauthenticated(why) ||
                       absl::IsInvalidArgument(why) || (absl::IsCancelled(why) && !was_welcomed);
  CallLater(refused ? kLater : kSoon);
}

// Its answer renews the lease, so that the ranks outlast any orphan grace.
void Agent::MeetForeignStore(const absl::Status& why) {
  foreign_store_ = true;
  lease_->Renew();
  const std::string message = absl::StrCat(options_.coordinator, ": ", why.message());
  if (message != last_complaint_) {
    LogError(
        "the coordinator has another store than this worker's ranks; they go on, and are not reported to it",
        {{"coordinator", options_.coordinator},
         {"error", why},
         {"next", absl::StrCat("start the coordinator with the right --state-dir; or give the ranks up: muster worker "
                               "adopt --state-dir ",
                               options_.state_dir)}});
    if (absl::Status s = WriteForeignStore(options_.state_dir, message); !s.ok()) {
      LogWarn("cannot note the foreign store", {{"error", s}});
    }
  }
  last_complaint_ = message;
  CallLater(kForeign);
}

void Agent::FollowStoreChoice() {
  const std::optional<StoreChoice> choice = TakeStoreChoice(options_.state_dir);
  if (!choice.has_value()) return;
  LogWarn("leaving the store of the ranks at the request of an operator",
          {{"store", store_id_}, {"choice", *choice == StoreChoice::kAdopt ? "adopt" : "reset"}});
  store_id_.clear();
  if (*choice == StoreChoice::kAdopt) return;
  for (const auto& [id, rank] : ranks_) rank->Kill(loop_->now());
}

void Agent::BelongTo(const std::string& store_id) {
  // Also what an earlier daemon noted: a choice that is left would end ranks when another store is met some day.
  foreign_store_ = false;
  (void)WriteForeignStore(options_.state_dir, "");
  (void)TakeStoreChoice(options_.state_dir);
  if (store_id.empty() || store_id == store_id_) return;  // an older coordinator has none
  if (!store_id_.empty()) LogWarn("the coordinator has another store than before", {{"store", store_id}});
  store_id_ = store_id;
  if (absl::Status status = WriteStoreId(options_.state_dir, store_id); !status.ok()) {
    LogError("cannot keep the store's id", {{"error", status}});
  }
}

void Agent::Received(const CoordinatorMessage& message) {
  if (message.term() < term_) {
    return stream_->Break(absl::CancelledError(
        absl::StrCat("the coordinator's term ", message.term(), " is stale: term ", term_, " was seen before")));
  }
  term_ = message.term();
  answered_ = last_contact_ = loop_->now().steady;
  if (message.has_welcome()) return Welcomed(message.welcome());
  if (contact_ != Contact::kWelcomed) {
    return stream_->Break(absl::InternalError("the coordinator did not begin with a Welcome"));
  }
  if (message.has_desired()) return ApplyDesired(message.desired());
  if (message.has_records_ack()) {
    const auto rank = ranks_.find(RankOf(message.records_ack().key()));
    if (rank == ranks_.end()) return;
    rank->second->feed().AcknowledgeRecords(message.records_ack().sequence());
    SendUpdatesLater();
  } else if (message.has_logs_ack()) {
    const auto rank = ranks_.find(RankOf(message.logs_ack().key()));
    if (rank == ranks_.end()) return;
    rank->second->feed().AcknowledgeLogs(message.logs_ack().offset());
    SendUpdatesLater();
  }
}

void Agent::Welcomed(const Welcome& welcome) {
  contact_ = Contact::kWelcomed;
  last_complaint_.clear();
  BelongTo(welcome.store_id());
  lease_->Renew();
  const auto duration = [](const google::protobuf::Duration& d, absl::Duration otherwise) {
    const absl::Duration given = FromProto(d);
    return given > absl::ZeroDuration() ? given : otherwise;
  };
  start_context_.orphan_grace = duration(welcome.orphan_grace(), start_context_.orphan_grace);
  detection_ = duration(welcome.detection(), detection_);
  LogInfo("in contact with the coordinator",
          {{"coordinator", options_.coordinator}, {"version", welcome.coordinator_version()}});
  for (const auto& [id, rank] : ranks_) {
    rank->feed().Reconnected();
    rank->observed.reset();
  }
  SendUpdates(/*full=*/true);
  relay_->Resend();
}

void Agent::Send(WorkerMessage message) { stream_->Send(std::move(message)); }

void Agent::SendObserved(bool full) {
  if (contact_ != Contact::kWelcomed) return;
  const Now now = loop_->now();
  WorkerMessage message;
  Observed& observed = *message.mutable_observed();
  observed.set_full(full);
  observed.set_leaving(finishing_);
  // It may have ended after the Hello.
  if (full && (preflights_->on() || !ProblemsOf(preflight_).empty())) *observed.mutable_preflight() = preflight_;
  for (const auto& [id, rank] : ranks_) {
    const DesiredRank* desired = DesiredOf(id);
    const bool forgotten = fresh_ && desired == nullptr;
    ObservedRank seen = rank->Observe(desired != nullptr && desired->has_stop(), forgotten, now);
    if (!full && !HasChanged(rank->observed, now.steady - rank->observed_at, seen)) continue;
    rank->observed = seen;
    rank->observed_at = now.steady;
    *observed.add_ranks() = std::move(seen);
  }
  StuckRanks stuck;
  for (const auto& [id, rank] : ranks_) {
    const std::string processes = rank->stuck();
    if (processes.empty()) continue;
    StuckRank& holder = *stuck.add_ranks();
    *holder.mutable_key() = KeyOf(id);
    const std::vector<uint32_t> slots = SlotsOf(*rank);
    holder.mutable_slots()->Assign(slots.begin(), slots.end());
    holder.set_processes(processes);
  }
  std::string as_text = stuck.SerializeAsString();
  if (full || as_text != reported_stuck_) *observed.mutable_stuck() = std::move(stuck);
  reported_stuck_ = std::move(as_text);
  if (full || observed.ranks_size() > 0 || observed.has_stuck()) Send(std::move(message));
}

void Agent::CheckAgain() {
  if (preflights_->busy() || leaving_) return;
  if (!preflights_->on()) {
    if (!ProblemsOf(preflight_).empty() && LookForRoom(/*write=*/true) == Room::kYes) {
      Checked(CheckOwnFolders(options_.state_dir, options_.run_dir, /*write=*/false));
    }
    return;
  }
  std::vector<Slot> free(node_.slots().begin(), node_.slots().end());
  for (const auto& [id, rank] : ranks_) {
    if (rank->ended() && rank->stuck().empty()) continue;
    const std::vector<uint32_t> held = SlotsOf(*rank);
    std::erase_if(free,
                  [&](const Slot& slot) { return std::find(held.begin(), held.end(), slot.index()) != held.end(); });
  }
  preflights_->Start(desired_.preflight(), std::move(free));
}

void Agent::Checked(Preflight found) {
  for (const PreflightCheck& check : found.checks()) {
    if (check.problem().empty()) continue;
    LogError("this machine takes no ranks", {{"check", check.name()}, {"problem", check.problem()}});
  }
  preflight_ = std::move(found);
  if (!ProblemsOf(preflight_).empty() && !check_posted_) {
    check_posted_ = true;
    loop_->PostAfter(kCheckAgain, [this] {
      check_posted_ = false;
      CheckAgain();
    });
  }
  if (desired_.preflight() > preflight_.number()) CheckAgain();
  if (contact_ != Contact::kWelcomed) return;  // reported after Welcome
  WorkerMessage message;
  *message.mutable_observed()->mutable_preflight() = preflight_;
  Send(std::move(message));
}

std::vector<uint32_t> Agent::SlotsOf(const Rank& rank) const {
  if (const LocalRank local = rank.AsLocal(); local.slots.has_value()) return *local.slots;
  std::vector<uint32_t> all;  // an older daemon started it and did not note which
  for (const Slot& slot : node_.slots()) all.push_back(slot.index());
  return all;
}

void Agent::ReportAbsent() {
  if (contact_ != Contact::kWelcomed) return;
  WorkerMessage message;
  for (const DesiredRank& desired : desired_.ranks()) {
    const auto not_started = not_started_.find(RankOf(desired.key()));
    const bool never = not_started != not_started_.end();
    if ((!desired.has_stop() && !never) || ranks_.contains(RankOf(desired.key()))) continue;
    ObservedRank& absent = *message.mutable_observed()->add_ranks();
    *absent.mutable_key() = desired.key();
    absent.set_state(RANK_STATE_EXITED);
    absent.mutable_exit()->set_cause(RankExit::STOPPED);
    absent.mutable_exit()->set_message(
        never ? not_started->second
              : absl::StrCat("rank ", desired.key().rank(), " was asked to stop before it started"));
  }
  if (message.observed().ranks_size() > 0) Send(std::move(message));
}

void Agent::SendUpdates(bool full) {
  if (contact_ != Contact::kWelcomed) return;
  std::vector<WorkerMessage> messages;
  if (stream_->queued() < kQueued) {
    for (const auto& [id, rank] : ranks_) rank->feed().Collect(rank->ended(), loop_->now(), messages);
  }
  // Send a rank's state before the records that it follows from.
  SendObserved(full);
  for (WorkerMessage& message : messages) Send(std::move(message));
}

void Agent::SendUpdatesLater() {
  if (std::exchange(update_posted_, true)) return;
  loop_->Post([this] {
    update_posted_ = false;
    SendUpdates();
  });
}

void Agent::RenewLease() {
  const absl::Duration silence = loop_->now().steady - last_contact_;
  const absl::Duration more = options_.outage_grace.value_or(start_context_.orphan_grace) - start_context_.orphan_grace;
  const bool in_contact = contact_ == Contact::kWelcomed && loop_->now().steady - answered_ < kInContact;
  if (in_contact || silence < more) lease_->Renew();
}

void Agent::Heartbeat() {
  RenewLease();
  const SteadyTime now = loop_->now().steady;
  if (contact_ == Contact::kNone) return;
  if (now - answered_ >= detection_) {
    answered_ = now;  // break only once
    return stream_->Break(absl::UnavailableError(absl::StrCat("no answer for ", absl::FormatDuration(detection_))));
  }
  if (contact_ != Contact::kWelcomed) return;
  if (now - last_heartbeat_ < kHeartbeat) return;
  last_heartbeat_ = now;
  WorkerMessage message;
  message.mutable_heartbeat()->set_number(++heartbeats_);
  if (std::optional<NodeUse> use = use_->Take()) *message.mutable_heartbeat()->mutable_use() = *std::move(use);
  Send(std::move(message));
}

}  // namespace muster::agent
