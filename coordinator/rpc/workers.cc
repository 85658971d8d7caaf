#include "coordinator/rpc/workers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "coordinator/rpc/worker_stream.h"

namespace muster::rpc {
namespace {

using server::Rendezvous;
using server::Turn;

constexpr absl::Duration kLongestWait = absl::Hours(1);

// `node`: of the caller's certificate; empty: any.
absl::Status CheckCurrent(const core::Core& core, const RankKey& key, const std::string& node) {
  const JobId job(key.job());
  if (!core.IsCurrent(job, key.generation())) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", key.generation(), " is not the current one of job ", key.job()));
  }
  const RankId rank = {job, key.generation(), key.rank()};
  if (node.empty() || core.StandingOf(rank, NodeId(node)) == core::Core::Standing::kCurrent) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("rank ", key.rank(), " of job ", key.job(), " was not placed on node ", node));
}

absl::Duration WaitOf(const RendezvousGetRequest& request) {
  const absl::Duration wait = absl::Seconds(request.wait().seconds()) + absl::Nanoseconds(request.wait().nanos());
  return std::min(wait, kLongestWait);
}

// One RendezvousGet: ends when its value is there, or its wait is over, or its caller has gone.
class GetReactor final : public grpc::ServerUnaryReactor {
 public:
  GetReactor(const RendezvousGetRequest* request, RendezvousGetReply* reply, std::string node, server::Loop* loop)
      : request_(request), reply_(reply), node_(std::move(node)), loop_(loop) {
    loop_->Post(
        [this, state = state_](Turn& turn) { turn.AfterCommit([this, state, &turn] { Begin(*state, turn); }); });
  }

  void OnCancel() override {
    loop_->Post([state = state_](Turn& turn) {
      turn.AfterCommit([state, &rendezvous = turn.rendezvous()] { rendezvous.Cancel(state->wait); });
    });
  }
  void OnDone() override { delete this; }

 private:
  // Of the loop's thread; may outlive the call.
  struct State {
    uint64_t wait = 0;
  };

  void Begin(State& state, Turn& turn) {
    if (absl::Status status = CheckCurrent(turn.core(), request_->key(), node_); !status.ok()) {
      return Finish(ToGrpc(status));
    }
    const SteadyTime now = turn.now().steady;
    state.wait = turn.rendezvous().Get({JobId(request_->key().job()), request_->key().generation()}, request_->name(),
                                       now + WaitOf(*request_), now, [this](absl::StatusOr<std::string> value) {
                                         if (value.ok()) reply_->set_value(*std::move(value));
                                         Finish(ToGrpc(value.status()));
                                       });
  }

  const RendezvousGetRequest* const request_;
  RendezvousGetReply* const reply_;
  const std::string node_;
  server::Loop* const loop_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace

grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>* WorkersService::Connect(
    grpc::CallbackServerContext* context) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Workers/Connect");
  return StartWorkerStream(caller, loop_);
}

grpc::ServerUnaryReactor* WorkersService::RendezvousSet(grpc::CallbackServerContext* context,
                                                        const RendezvousSetRequest* request, RendezvousSetReply*) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Workers/RendezvousSet");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, node = caller->node](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core(), &rendezvous = turn.rendezvous()] {
      absl::Status status = CheckCurrent(core, request->key(), node);
      if (status.ok()) {
        status = rendezvous.Set({JobId(request->key().job()), request->key().generation()}, request->name(),
                                request->value());
      }
      reactor->Finish(ToGrpc(status));
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* WorkersService::RendezvousGet(grpc::CallbackServerContext* context,
                                                        const RendezvousGetRequest* request,
                                                        RendezvousGetReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Workers/RendezvousGet");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  return new GetReactor(request, reply, caller->node, loop_);
}

}  // namespace muster::rpc
