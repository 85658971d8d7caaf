#include "worker/agent/rank.h"

#include <signal.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"

namespace muster::agent {
namespace {

// How long a trainer may take to attach before a stop is sent as a signal.
constexpr absl::Duration kAttachWait = absl::Seconds(2);
// How long the shim may take to record the end of a trainer that it kills. A frozen shim never does.
constexpr absl::Duration kShimPatience = absl::Seconds(5);
// How long killed processes may take to end, memory to be freed included, before they count as stuck.
constexpr absl::Duration kEndPatience = absl::Seconds(5);
constexpr absl::Duration kLookAtStuck = absl::Seconds(1);
constexpr absl::Duration kDefaultStopDeadline = absl::Seconds(30);
// Unacknowledged output delays the report of a rank's end for at most this long.
constexpr absl::Duration kLogWait = absl::Seconds(5);

}  // namespace

RankExit RefineExit(RankExit exit, const Facts& facts, bool stop_requested) {
  if (!facts.damage.ok()) {
    if (exit.cause() == RankExit::COMPLETED || exit.cause() == RankExit::STOPPED) exit.set_cause(RankExit::FAILED);
    exit.set_message(absl::StrCat(exit.message(), "; its records are lost: ", facts.damage.message()));
    return exit;
  }
  if (exit.cause() == RankExit::FAILED && exit.signal() == 0 && facts.failure.has_value()) {
    if (facts.failure->refused()) exit.set_cause(RankExit::REFUSED);
    exit.set_of_node(facts.failure->of_node());
    exit.set_of_other_rank(facts.failure->of_other_rank());
    exit.set_message(absl::StrCat(exit.message(), ": ", facts.failure->message()));
    return exit;
  }
  const bool clean = exit.cause() == RankExit::COMPLETED || exit.cause() == RankExit::ORPHANED;
  if (!clean || exit.exit_code() != 0 || exit.signal() != 0) return exit;
  if (facts.finished) {
    exit.set_cause(RankExit::COMPLETED);
  } else if (exit.cause() == RankExit::COMPLETED && (stop_requested || facts.any)) {
    exit.set_cause(RankExit::STOPPED);
    if (!stop_requested) {
      exit.set_message(absl::StrCat(exit.message(),
                                    " before its last step without a stop request from muster: "
                                    "another process sent it a signal"));
    }
  }
  return exit;
}

Rank::Rank(rundir::RankDir dir) : dir_(std::move(dir)), feed_(dir_), stall_detector_(dir_.TrainerPath()) {}

bool Rank::Adopt(Now now) {
  if (const absl::StatusOr<rundir::Start> start = dir_.ReadStart(); start.ok()) slots_ = start->slots;
  while (true) {
    const auto found = Examine(dir_);
    if (std::holds_alternative<Unspawned>(found)) return false;
    trainer_ran_ = true;
    if (const auto* end = std::get_if<Ended>(&found)) {
      // Record it for the next daemon. On a full disk the next daemon examines the rank again.
      if (end->exit.cause() == RankExit::VANISHED) dir_.WriteExit(end->exit).IgnoreError();
      Conclude(end->exit, now);
      return true;
    }
    absl::StatusOr<std::unique_ptr<RankProcess>> process = RankProcess::Adopt(std::get<Running>(found).shim);
    if (process.ok()) {
      process_ = *std::move(process);
      return true;
    }
  }
}

std::string Rank::stuck() const {
  if (!ended() || (remains_.empty() && process_ == nullptr)) return "";
  return remains_.empty() ? "muster-step" : Describe(remains_);
}

LocalRank Rank::AsLocal() const {
  LocalRank local{id(), ended(), termination_, slots_, !stuck().empty()};
  if (assignment_.has_value()) local.slots.emplace(assignment_->slots().begin(), assignment_->slots().end());
  return local;
}

void Rank::EndWith(RankExit exit, Now now) {
  if (!exit.has_ended()) *exit.mutable_ended() = ToProto(now.wall);
  if (absl::IsNotFound(dir_.ReadExit().status())) {
    if (absl::Status status = dir_.WriteExit(exit); !status.ok()) {
      LogError("cannot store the exit record", {id(), {"error", status}});
    }
  }
  LogInfo("rank ended", {id(), {"message", exit.message()}});
  exit_ = std::move(exit);
  ended_at_ = now.steady;
  if (commands_ != nullptr) std::exchange(commands_, nullptr)->Close(absl::AbortedError("the rank has ended"));
}

void Rank::Conclude(RankExit exit, Now now) {
  remains_ = Remaining(dir_);
  if (remains_.empty()) return EndWith(std::move(exit), now);
  concluding_ = std::move(exit);
  remain_since_ = now.steady;
  LookAtRemains(now);
}

void Rank::LookAtRemains(Now now) {
  if (ended() && now.steady - remains_looked_at_ < kLookAtStuck) return;
  remains_looked_at_ = now.steady;
  const bool was_stuck = !stuck().empty();
  remains_ = Remaining(dir_);
  for (const rundir::ProcessRow& row : remains_) kill(row.pid, SIGKILL);
  if (remains_.empty()) {
    if (was_stuck) LogInfo("the processes of a stuck rank have ended", {id()});
  } else if (ended() || now.steady - remain_since_ < kEndPatience) {
    return;
  }
  if (!concluding_.has_value()) return;
  RankExit exit = *std::exchange(concluding_, std::nullopt);
  if (!remains_.empty()) {
    LogError("a rank was killed and does not end; its slots are not free", {id(), {"processes", Describe(remains_)}});
    exit.set_message(absl::StrCat(exit.message(), "; it was killed, but does not end: ", Describe(remains_)));
  }
  EndWith(std::move(exit), now);
}

void Rank::Start(const rundir::Start& start, const std::string& step_binary, Now now) {
  absl::Status status = dir_.Create(start);
  // Made by a daemon that was killed before it spawned the shim.
  if (absl::IsAlreadyExists(status)) status = absl::OkStatus();
  if (status.ok()) {
    feed_.emplace(dir_);  // in the trainer's folder, which is known now
    stall_detector_.emplace(dir_.TrainerPath());
    absl::StatusOr<std::unique_ptr<RankProcess>> process = RankProcess::Spawn(step_binary, dir_);
    status = process.status();
    if (status.ok()) process_ = *std::move(process);
  }
  if (status.ok()) return;
  RankExit exit;
  exit.set_cause(RankExit::SPAWN_FAILED);
  exit.set_message(absl::StrCat("rank ", id().rank, " could not be started: ", status.message()));
  EndWith(std::move(exit), now);
}

void Rank::Refuse(const absl::Status& why, Now now) {
  rundir::Start nothing;
  if (absl::Status made = dir_.Create(nothing); !made.ok() && !absl::IsAlreadyExists(made)) {
    LogError("cannot make a rank's folder", {id(), {"error", made}});
  }
  RankExit exit;
  exit.set_cause(RankExit::REFUSED);
  exit.set_of_node(true);
  exit.set_message(absl::StrCat("rank ", id().rank, " was refused by its worker: ", why.message()));
  EndWith(std::move(exit), now);
}

void Rank::HandleShimEnd(Now now) {
  process_->Reap();
  process_.reset();
  if (ended() || concluding_.has_value()) return LookAtRemains(now);
  const auto found = Examine(dir_);
  if (const auto* end = std::get_if<Ended>(&found)) return Conclude(end->exit, now);
  if (const auto* running = std::get_if<Running>(&found)) {
    // Another shim had the folder already: an earlier daemon was killed while it spawned it.
    absl::StatusOr<std::unique_ptr<RankProcess>> process = RankProcess::Adopt(running->shim);
    if (process.ok()) {
      process_ = *std::move(process);
      return;
    }
  }
  RankExit exit;
  exit.set_cause(termination_ == Termination::kNone ? RankExit::SPAWN_FAILED : RankExit::STOPPED);
  exit.set_message(absl::StrCat("rank ", id().rank,
                                termination_ == Termination::kNone
                                    ? ": muster-step ended before it started the trainer; the worker's log says why"
                                    : " was asked to stop before it started"));
  EndWith(std::move(exit), now);
}

void Rank::Stop(const muster::Stop& stop, Now now) {
  if (ended() || termination_ != Termination::kNone) return;
  termination_ = Termination::kStop;
  stop_ = stop;
  absl::Duration deadline = FromProto(stop.deadline());
  if (!stop.has_deadline()) deadline = kDefaultStopDeadline;
  terminate_at_ = now.steady + std::min(kAttachWait, deadline);
  kill_at_ = now.steady + deadline;
  if (commands_ == nullptr) return;
  Command command;
  *command.mutable_stop()->mutable_stop() = stop_;
  commands_->Send(std::move(command));
}

void Rank::Kill(Now now) {
  if (ended() || termination_ == Termination::kKill) return;
  termination_ = Termination::kKill;
  kill_at_ = now.steady;
  Tick(now);
}

void Rank::Tick(Now now) {
  if (!remains_.empty()) return LookAtRemains(now);
  if (process_ == nullptr || ended()) return;
  stall_detector_->Look(now.steady);
  if (const auto& stall = stall_detector_->stall(); stall.has_value()) ReportStep(stall->step);
  if (termination_ == Termination::kNone) return;
  if (termination_ == Termination::kStop && !terminated_ && commands_ == nullptr && now.steady >= terminate_at_) {
    LogInfo("the trainer is not attached; sending it SIGTERM", {id()});
    terminated_ = true;
    process_->Terminate();
  }
  if (now.steady >= kill_at_ && !killed_) {
    if (termination_ == Termination::kStop) LogWarn("rank did not stop before its deadline; killing it", {id()});
    killed_ = true;
    process_->Kill();
  }
  if (now.steady >= kill_at_ + kShimPatience && !destroyed_) {
    LogError("muster-step does not respond; killing it and its trainer", {id()});
    destroyed_ = true;
    process_->Destroy();
    remain_since_ = now.steady;
  }
  // Usually it has ended by now, and HandleShimEnd was called.
  if (destroyed_ && now.steady - remain_since_ >= kEndPatience) {
    RankExit exit;
    exit.set_cause(RankExit::FAILED);
    exit.set_signal(SIGKILL);
    exit.set_message(absl::StrCat("rank ", id().rank, " was killed together with muster-step"));
    Conclude(std::move(exit), now);
  }
}

void Rank::Attach(std::shared_ptr<CommandStream> commands) {
  if (ended()) return commands->Close(absl::AbortedError("the rank has ended"));
  const bool assigned = assignment_.has_value() && HasTable();
  if (!assigned && termination_ == Termination::kNone) {
    return commands->Close(absl::UnavailableError(absl::StrCat(
        "the worker has no ", assignment_.has_value() ? "partition table" : "assignment", " for this rank yet")));
  }
  if (commands_ != nullptr) commands_->Close(absl::AbortedError("replaced by a newer stream of the same rank"));
  commands_ = std::move(commands);
  if (assigned) SendAssignment(/*with_table=*/true);
  if (termination_ == Termination::kStop) {
    Command command;
    *command.mutable_stop()->mutable_stop() = stop_;
    commands_->Send(std::move(command));
  }
}

void Rank::Detach(const CommandStream* commands) {
  if (commands_.get() == commands) commands_.reset();
}

void Rank::Assign(const Assignment& assignment, std::shared_ptr<const PartitionTable> table) {
  if (table != nullptr) table_ = std::move(table);
  if (assignment_.has_value() && assignment_->SerializeAsString() == assignment.SerializeAsString()) return;
  assignment_ = assignment;
  if (commands_ != nullptr) SendAssignment(/*with_table=*/false);
}

void Rank::SendAssignment(bool with_table) {
  Command command;
  *command.mutable_assignment() = *assignment_;
  if (with_table && table_ != nullptr) *command.mutable_assignment()->mutable_table() = *table_;
  commands_->Send(std::move(command));
}

void Rank::ReportStep(uint64_t step) { reported_step_ = std::max(reported_step_, step); }

ObservedRank Rank::Observe(bool stop_desired, bool forgotten, Now now) const {
  ObservedRank result;
  *result.mutable_key() = KeyOf(id());
  const Facts& facts = feed_->facts();
  result.set_step(std::max(facts.step, reported_step_));
  const bool stop_requested = stop_desired || forgotten || termination_ != Termination::kNone;
  const bool delivered =
      forgotten || (feed_->records_drained() && (feed_->logs_drained() || now.steady - ended_at_ >= kLogWait));
  if (ended() && delivered) {
    result.set_state(RANK_STATE_EXITED);
    *result.mutable_exit() = RefineExit(*exit_, facts, stop_requested);
  } else if (termination_ != Termination::kNone) {
    result.set_state(RANK_STATE_STOPPING);
  } else {
    result.set_state(facts.running ? RANK_STATE_RUNNING : RANK_STATE_STARTING);
    if (!ended()) {
      result.set_op(stall_detector_->op());
      result.set_op_step(stall_detector_->step());
    }
    if (const auto& stall = stall_detector_->stall(); stall.has_value() && !ended()) {
      result.set_op_issued(stall->op_issued);
      result.set_op_completed(stall->op_completed);
      if (stall->op_exchanges.has_value()) result.set_op_exchanges(*stall->op_exchanges);
      result.set_frozen(stall->frozen);
      result.set_stalled_seconds(absl::ToDoubleSeconds(stall->duration));
    }
  }
  return result;
}

}  // namespace muster::agent
