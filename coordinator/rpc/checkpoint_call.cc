#include "coordinator/rpc/checkpoint_call.h"

#include <grpc/support/time.h>
#include <grpcpp/alarm.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "coordinator/core/checkpoint_answer.h"
#include "coordinator/rpc/request_number.h"
#include "coordinator/server/cursor.h"

namespace muster::rpc {
namespace {

using server::Turn;

constexpr absl::Duration kUsualCheckpointWait = absl::Minutes(5);

// Watches the job's events, and checks the job after each of them. Everything except the gRPC reactions runs on the
// loop's thread.
class CheckpointReactor final : public grpc::ServerUnaryReactor, public SelfOwned<CheckpointReactor> {
 public:
  CheckpointReactor(AuditedCall audited, const CheckpointRequest* request, CheckpointReply* reply, server::Loop* loop)
      : audited_(std::move(audited)), request_(request), reply_(reply), loop_(loop) {}

  void Begin() {
    loop_->Post([self = shared_from_this()](Turn& turn) { self->Ask(turn); });
  }

  void OnCancel() override { EndBy(absl::CancelledError("the caller disconnected")); }
  void OnDone() override { Release(); }

 private:
  void EndBy(const absl::Status& status) {
    loop_->Post([self = shared_from_this(), status](Turn& turn) {
      turn.AfterCommit([self, status, &watches = turn.watches()] { self->End(status, watches); });
    });
  }

  void Ask(Turn& turn) {
    const core::Core& core = turn.core();
    const absl::StatusOr<JobId> id = core.Find(request_->job());
    const absl::StatusOr<Job> job = id.ok() ? core.GetJob(*id) : id.status();
    absl::Status status = job.status();
    if (status.ok()) status = Authorize(audited_.caller, "/muster.v1.Jobs/Checkpoint", {job->owner()});
    const bool asked = status.ok();
    if (asked) status = turn.Handle(core::CheckpointJob{*id, NewRequestNumber()}).status;
    turn.Audit(id.ok() ? audited_.About("job", id->value()) : audited_.entry, status, asked && status.ok());
    if (!status.ok()) return End(status, turn.watches());
    job_ = *id;
    requested_ = core::RequestedNow(*job, core.HighestStep(job_));
    turn.AfterCommit([self = shared_from_this(), &turn] { self->Wait(turn); });
  }

  void Wait(Turn& turn) {
    WatchRequest events;
    events.set_job(job_.value());
    events.set_events(true);
    events.set_follow(true);
    events.set_cursor(server::CursorOf(turn.ledger().last_sequence()));
    absl::StatusOr<std::shared_ptr<server::Watch>> watch = turn.watches().Open(turn.core(), events, job_);
    if (!watch.ok()) return End(watch.status(), turn.watches());
    watch_ = *std::move(watch);
    const gpr_timespec deadline = gpr_time_add(
        gpr_now(GPR_CLOCK_MONOTONIC),
        gpr_time_from_millis(absl::ToInt64Milliseconds(WaitOf(*request_, kUsualCheckpointWait)), GPR_TIMESPAN));
    alarm_.Set(deadline, [self = shared_from_this()](bool rang) {
      if (rang) self->EndBy(self->TooLate());
    });
    Read(turn.core(), turn.watches());
  }

  absl::Status TooLate() const {
    return absl::DeadlineExceededError(
        absl::StrCat("no checkpoint of ", job_.value(), " after step ", requested_.after_step, " was published in ",
                     absl::FormatDuration(WaitOf(*request_, kUsualCheckpointWait)),
                     "; the request stays in effect: the step or the write may take longer than that (muster logs ",
                     job_.value(), ")"));
  }

  void Read(const core::Core& core, server::Watches& watches) {
    watches.Next(watch_, [self = shared_from_this(), &core, &watches](const server::WatchPage& page) {
      if (page.end && !page.status.ok()) return self->End(page.status, watches);
      self->Look(core, watches, page.end);
    });
  }

  void Look(const core::Core& core, server::Watches& watches, bool last) {
    const absl::StatusOr<Job> job = core.GetJob(job_);
    if (!job.ok()) return End(job.status(), watches);
    const bool over = last || !core.IsCurrent(job_, requested_.generation);
    if (const auto answer = core::AnswerTo(requested_, *job, over); answer.has_value()) {
      *reply_->mutable_checkpoint() = *answer;
      return End(absl::OkStatus(), watches);
    }
    if (over) {
      return End(absl::AbortedError(absl::StrCat("generation ", requested_.generation, " of ", job_.value(),
                                                 " has ended before its checkpoint was published")),
                 watches);
    }
    // In a later iteration, since a watch must not be read from within its own callback.
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([self, &core = turn.core(), &watches = turn.watches()] {
        if (!self->ended_) self->Read(core, watches);
      });
    });
  }

  void End(const absl::Status& status, server::Watches& watches) {
    if (std::exchange(ended_, true)) return;
    alarm_.Cancel();
    if (watch_ != nullptr) watches.Close(watch_);
    Finish(ToGrpc(status));
  }

  const AuditedCall audited_;
  const CheckpointRequest* const request_;
  CheckpointReply* const reply_;
  server::Loop* const loop_;

  // Touched by the loop's thread only.
  JobId job_;
  core::CheckpointRequested requested_;
  std::shared_ptr<server::Watch> watch_;
  bool ended_ = false;
  grpc::Alarm alarm_;
};

}  // namespace

grpc::ServerUnaryReactor* StartCheckpoint(AuditedCall audited, const CheckpointRequest* request, CheckpointReply* reply,
                                          server::Loop* loop) {
  const std::shared_ptr<CheckpointReactor> call = CheckpointReactor::Make(std::move(audited), request, reply, loop);
  call->Begin();
  return call.get();
}

}  // namespace muster::rpc
