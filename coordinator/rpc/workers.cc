#include "coordinator/rpc/workers.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "coordinator/rpc/table_call.h"
#include "coordinator/rpc/worker_stream.h"

namespace muster::rpc {
namespace {

using server::Rendezvous;
using server::Turn;

constexpr absl::Duration kLongestWait = absl::Hours(1);

RankId RankOf(const RankKey& key) { return {JobId(key.job()), key.generation(), key.rank()}; }

// Records that a rank of the current generation has arrived at the rendezvous. `node`: from the caller's certificate,
// which allows calls only for its own ranks; empty: any.
absl::Status Arrive(Turn& turn, const RankId& rank, const std::string& node) {
  const core::Core& core = turn.core();
  if (!node.empty() && core.StatusOf(rank, NodeId(node)) != core::Core::RankStatus::kCurrent) {
    if (absl::Status status = core.CheckCurrent(rank); !status.ok()) return status;
    return absl::PermissionDeniedError(
        absl::StrCat("rank ", rank.rank, " of job ", rank.job.value(), " was not placed on node ", node));
  }
  if (turn.core().HasArrived(rank)) return turn.core().CheckCurrent(rank);
  return turn.Handle(core::RankArrived{rank}).status;
}

// Adds the ranks that have not arrived, if known.
absl::Status Explained(const absl::Status& status, const core::Core& core, const JobId& job) {
  if (!absl::IsDeadlineExceeded(status)) return status;
  const std::string missing = core.Missing(job);
  return absl::DeadlineExceededError(
      absl::StrCat(status.message(), ": ", missing.empty() ? "every rank has arrived, but none has set it" : missing));
}

template <typename Request>
absl::Duration WaitOf(const Request& request) {
  return std::min(FromProto(request.wait()), kLongestWait);
}

// One RendezvousGet: finishes when the value is set, the wait is over, or the caller disconnects.
class GetReactor final : public grpc::ServerUnaryReactor, public SelfOwned<GetReactor> {
 public:
  GetReactor(const RendezvousGetRequest* request, RendezvousGetReply* reply, std::string node, server::Loop* loop)
      : request_(request), reply_(reply), node_(std::move(node)), loop_(loop) {}

  void Begin() {
    loop_->Post([self = shared_from_this()](Turn& turn) {
      const absl::Status current = Arrive(turn, RankOf(self->request_->key()), self->node_);
      turn.AfterCommit([self, current, &turn] {
        if (!current.ok()) return self->Finish(ToGrpc(current));
        self->Wait(turn);
      });
    });
  }

  void OnCancel() override {
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([self, &rendezvous = turn.rendezvous()] { rendezvous.Cancel(self->wait_); });
    });
  }
  void OnDone() override { Release(); }

 private:
  void Wait(Turn& turn) {
    const SteadyTime now = turn.now().steady;
    const JobId job(request_->key().job());
    wait_ =
        turn.rendezvous().Get({job, request_->key().generation()}, request_->name(), now + WaitOf(*request_), now,
                              [self = shared_from_this(), job, &core = turn.core()](absl::StatusOr<std::string> value) {
                                const absl::Status status = value.status();
                                if (status.ok()) self->reply_->set_value(*std::move(value));
                                self->Finish(ToGrpc(Explained(status, core, job)));
                              });
  }

  const RendezvousGetRequest* const request_;
  RendezvousGetReply* const reply_;
  const std::string node_;
  server::Loop* const loop_;
  uint64_t wait_ = 0;  // of the loop's thread
};

// One Sync: finishes when the rank has something to do, the wait is over, or the caller disconnects.
class SyncReactor final : public grpc::ServerUnaryReactor, public SelfOwned<SyncReactor> {
 public:
  SyncReactor(const SyncRequest* request, SyncReply* reply, std::string node, server::Loop* loop)
      : request_(request), reply_(reply), node_(std::move(node)), loop_(loop) {}

  void Begin() {
    loop_->Post([self = shared_from_this()](Turn& turn) {
      const RankId rank = RankOf(self->request_->key());
      if (absl::Status status = Arrive(turn, rank, self->node_); !status.ok()) {
        turn.AfterCommit([self, status] { self->Finish(ToGrpc(status)); });
        return;
      }
      self->call_ = turn.sync_calls().Begin(turn, {rank, *self->request_}, turn.now().steady + WaitOf(*self->request_),
                                            [self](absl::StatusOr<SyncReply> reply) {
                                              const absl::Status status = reply.status();
                                              if (status.ok()) *self->reply_ = *std::move(reply);
                                              self->Finish(ToGrpc(status));
                                            });
    });
  }

  void OnCancel() override {
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([self, &calls = turn.sync_calls()] { calls.Cancel(self->call_); });
    });
  }
  void OnDone() override { Release(); }

 private:
  const SyncRequest* const request_;
  SyncReply* const reply_;
  const std::string node_;
  server::Loop* const loop_;
  uint64_t call_ = 0;  // of the loop's thread
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
    const absl::Status current = Arrive(turn, RankOf(request->key()), node);
    turn.AfterCommit([=, &rendezvous = turn.rendezvous()] {
      absl::Status status = current;
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
  const std::shared_ptr<GetReactor> call = GetReactor::Make(request, reply, caller->node, loop_);
  call->Begin();
  return call.get();
}

grpc::ServerUnaryReactor* WorkersService::Sync(grpc::CallbackServerContext* context, const SyncRequest* request,
                                               SyncReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Workers/Sync");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  const std::shared_ptr<SyncReactor> call = SyncReactor::Make(request, reply, caller->node, loop_);
  call->Begin();
  return call.get();
}

grpc::ServerWriteReactor<TableChunk>* WorkersService::FetchTable(grpc::CallbackServerContext* context,
                                                                 const FetchTableRequest* request) {
  return StartTableCall(gate_->Admit(*context, "/muster.v1.Workers/FetchTable"), *request, loop_);
}

}  // namespace muster::rpc
