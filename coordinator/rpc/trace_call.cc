#include "coordinator/rpc/trace_call.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "coordinator/core/exits.h"
#include "coordinator/rpc/request_number.h"

namespace muster::rpc {
namespace {

using server::Traces;
using server::Turn;

constexpr uint32_t kMostSteps = 20;
constexpr uint32_t kMostRanks = 8;  // keeps the reply small
constexpr absl::Duration kUsualTraceWait = absl::Minutes(1);

class TraceReactor final : public grpc::ServerUnaryReactor, public SelfOwned<TraceReactor> {
 public:
  TraceReactor(AuditedCall audited, const TraceRequest* request, TraceReply* reply, server::Loop* loop)
      : audited_(std::move(audited)), request_(request), reply_(reply), loop_(loop) {}

  void Begin() {
    loop_->Post([self = shared_from_this()](Turn& turn) { self->Trace(turn); });
  }

  void OnCancel() override {
    loop_->Post([number = request_number_](Turn& turn) {
      turn.AfterCommit([number, &traces = turn.traces()] { traces.Cancel(number); });
    });
  }
  void OnDone() override { Release(); }

 private:
  void Trace(Turn& turn) {
    const absl::StatusOr<core::TraceJob> event = Ask(turn.core());
    absl::Status status = event.status();
    if (status.ok()) status = turn.Handle(*event).status;
    turn.Audit(event.ok() ? audited_.About("job", event->job.value()) : audited_.entry, status, status.ok());
    if (!status.ok()) return Finish(ToGrpc(status));
    job_ = event->job;
    const uint64_t generation = turn.core().Stored(job_)->generation();
    reply_->set_generation(generation);
    turn.traces().Begin({job_, generation}, request_number_, event->ranks,
                        turn.now().steady + WaitOf(*request_, kUsualTraceWait),
                        [self = shared_from_this(), &core = turn.core()](Traces::Result result) {
                          self->End(core, std::move(result));
                        });
  }

  absl::StatusOr<core::TraceJob> Ask(const core::Core& core) const {
    const absl::StatusOr<JobId> id = core.Find(request_->job());
    const absl::StatusOr<Job> job = id.ok() ? core.GetJob(*id) : id.status();
    if (!job.ok()) return job.status();
    if (absl::Status status = Authorize(audited_.caller, "/muster.v1.Jobs/Trace", {job->owner()}); !status.ok())
      return status;
    if (request_->steps() < 1 || request_->steps() > kMostSteps) {
      return absl::InvalidArgumentError(absl::StrCat("steps: 1 to ", kMostSteps, ", got ", request_->steps()));
    }
    if (request_->ranks_size() > static_cast<int>(kMostRanks)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks: at most ", kMostRanks, " at a time, got ", request_->ranks_size()));
    }
    core::TraceJob event{.job = *id, .request = {}, .ranks = {request_->ranks().begin(), request_->ranks().end()}};
    event.request.set_id(request_number_);
    event.request.set_steps(request_->steps());
    // A job may run on fewer ranks than it requests.
    const std::vector<Generation> generations = core.ListGenerations(*id);
    const uint32_t ranks = generations.empty() ? 0 : static_cast<uint32_t>(generations.front().ranks_size());
    for (uint32_t rank = 0; request_->ranks().empty() && rank < std::min(kMostRanks, ranks); ++rank) {
      event.ranks.push_back(rank);
    }
    return event;
  }

  void End(const core::Core& core, Traces::Result result) {
    if (!result.status.ok()) return Finish(ToGrpc(result.status));
    const std::vector<Generation> generations = core.ListGenerations(job_);
    for (RankTrace& rank : result.ranks) {
      for (const Generation& generation : generations) {
        if (generation.number() != reply_->generation()) continue;
        const RankPlacement& placed = generation.ranks(static_cast<int>(rank.rank()));
        rank.set_node(placed.node());
        *rank.mutable_role() = placed.role();
        rank.set_name(core::RankName(generation, rank.rank()));
      }
      *reply_->add_ranks() = std::move(rank);
    }
    for (const uint32_t rank : result.missing) reply_->add_missing(rank);
    Finish(grpc::Status::OK);
  }

  const AuditedCall audited_;
  const TraceRequest* const request_;
  TraceReply* const reply_;
  server::Loop* const loop_;
  const uint64_t request_number_ = NewRequestNumber();

  // Touched by the loop's thread only. Kept: a prefix in the request may fit more jobs by the time the trace ends.
  JobId job_;
};

}  // namespace

grpc::ServerUnaryReactor* StartTrace(AuditedCall audited, const TraceRequest* request, TraceReply* reply,
                                     server::Loop* loop) {
  const std::shared_ptr<TraceReactor> call = TraceReactor::Make(std::move(audited), request, reply, loop);
  call->Begin();
  return call.get();
}

}  // namespace muster::rpc
