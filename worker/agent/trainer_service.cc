#include "worker/agent/trainer_service.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "worker/agent/reconcile.h"

namespace muster::agent {
namespace {

absl::Status Closing() { return absl::UnavailableError("the worker daemon is ending; attach to the next one"); }

// The command stream of one trainer.
class Commands final : public grpc::ServerWriteReactor<Command>, public CommandStream, public rpc::SelfOwned<Commands> {
 public:
  static Commands* Start(std::shared_ptr<HostGate> gate, const RankId& rank, const absl::Status& admitted) {
    const std::shared_ptr<Commands> commands = Make(std::move(gate), rank);
    if (!admitted.ok()) {
      commands->Close(admitted);
      return commands.get();
    }
    commands->gate_->Post([commands](TrainerHost* host) {
      if (host == nullptr) return commands->Close(Closing());
      host->Attached(commands->rank_, commands);
    });
    return commands.get();
  }

  Commands(std::shared_ptr<HostGate> gate, RankId rank) : gate_(std::move(gate)), rank_(std::move(rank)) {}

  void Send(Command command) override {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    outgoing_.push_back(std::move(command));
    Step();
  }

  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
    Step();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    outgoing_.pop_front();
    if (!ok && !end_.has_value()) end_ = absl::CancelledError("the trainer has gone");
    Step();
  }

  void OnCancel() override { Close(absl::CancelledError("the trainer has gone")); }

  void OnDone() override {
    gate_->Post([self = Release()](TrainerHost* host) {
      if (host != nullptr) host->Detached(self->rank_, self.get());
    });
  }

 private:
  // Operations are started under the mutex, so that none follows Finish; gRPC never runs a reaction inside of them.
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || writing_) return;
    if (end_.has_value()) {
      finished_ = true;
      Finish(rpc::ToGrpc(*end_));
    } else if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    }
  }

  const std::shared_ptr<HostGate> gate_;
  const RankId rank_;
  absl::Mutex mutex_;
  std::deque<Command> outgoing_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

// A call that the host answers later. It also ends when its caller has gone or the server shuts down, and then ignores
// the host's answer: Shutdown waits for every call, and an answer may depend on a timer, which no longer runs then.
template <typename Reply>
class Waiting final : public grpc::ServerUnaryReactor, public rpc::SelfOwned<Waiting<Reply>> {
 public:
  // Begins the call at the host. Returns what stops it there; null: it goes on without its caller.
  using Done = std::function<void(absl::StatusOr<Reply>)>;
  using Start = std::function<std::function<void()>(TrainerHost* host, Done done)>;
  Waiting(std::shared_ptr<HostGate> gate, Reply* reply, Start start)
      : gate_(std::move(gate)), reply_(reply), start_(std::move(start)) {}

  void Begin() {
    gate_->Post([self = this->shared_from_this()](TrainerHost* host) {
      if (host == nullptr) return self->End(Closing());
      self->stop_ = self->start_(host, [self](absl::StatusOr<Reply> answer) { self->End(std::move(answer)); });
    });
  }

  void OnCancel() override {
    gate_->Post([self = this->shared_from_this()](TrainerHost* host) {
      if (self->stop_) self->stop_();
      self->End(absl::CancelledError("the trainer has gone"));
    });
  }
  void OnDone() override { this->Release(); }

 private:
  void End(absl::StatusOr<Reply> answer) {
    if (std::exchange(ended_, true)) return;
    const absl::Status status = answer.status();
    if (status.ok()) *reply_ = *std::move(answer);
    this->Finish(rpc::ToGrpc(status));
  }

  const std::shared_ptr<HostGate> gate_;
  Reply* const reply_;  // gRPC's, until the end
  const Start start_;
  // Of the loop's thread.
  std::function<void()> stop_;
  bool ended_ = false;
};

template <typename Reply>
grpc::ServerUnaryReactor* BeginWaiting(std::shared_ptr<HostGate> gate, Reply* reply,
                                       typename Waiting<Reply>::Start start) {
  const std::shared_ptr<Waiting<Reply>> waiting = Waiting<Reply>::Make(std::move(gate), reply, std::move(start));
  waiting->Begin();
  return waiting.get();
}

// For a host that answers with a value.
ValueCallback AsGetReply(Waiting<GetReply>::Done done) {
  return [done = std::move(done)](absl::StatusOr<std::string> value) {
    if (!value.ok()) return done(value.status());
    GetReply reply;
    reply.set_value(*std::move(value));
    done(std::move(reply));
  };
}

grpc::ServerUnaryReactor* EndWith(grpc::CallbackServerContext* context, const absl::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(rpc::ToGrpc(status));
  return reactor;
}

}  // namespace

void HostGate::Post(std::function<void(TrainerHost*)> callback) {
  loop_->Post([self = shared_from_this(), callback = std::move(callback)] { callback(self->host_); });
}

grpc::ServerWriteReactor<Command>* TrainerService::Attach(grpc::CallbackServerContext* context,
                                                          const AttachRequest* request) {
  absl::Status status = callers_->Check(context->peer(), request->key());
  if (status.ok()) status = rpc::CheckVersion({request->protocol(), request->oldest_protocol()}, request->version());
  return Commands::Start(gate_, RankOf(request->key()), status);
}

grpc::ServerUnaryReactor* TrainerService::Report(grpc::CallbackServerContext* context, const ReportRequest* request,
                                                 ReportReply* reply) {
  const absl::Status status = callers_->Check(context->peer(), request->key());
  if (!status.ok()) return EndWith(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  gate_->Post([reactor, request, reply](TrainerHost* host) {
    if (host == nullptr) return reactor->Finish(rpc::ToGrpc(Closing()));
    reply->set_sent(host->Reported(RankOf(request->key()), request->step(), request->sequence()));
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

grpc::ServerUnaryReactor* TrainerService::Set(grpc::CallbackServerContext* context, const SetRequest* request,
                                              SetReply* reply) {
  const absl::Status status = callers_->Check(context->peer(), request->key());
  if (!status.ok()) return EndWith(context, status);
  return BeginWaiting<SetReply>(gate_, reply, [request](TrainerHost* host, Waiting<SetReply>::Done done) {
    host->Set(*request, [done = std::move(done)](const absl::StatusOr<std::string>& set) {
      done(set.ok() ? absl::StatusOr<SetReply>(SetReply()) : set.status());
    });
    return nullptr;  // ranks elsewhere may still need the key
  });
}

grpc::ServerUnaryReactor* TrainerService::Get(grpc::CallbackServerContext* context, const GetRequest* request,
                                              GetReply* reply) {
  const absl::Status status = callers_->Check(context->peer(), request->key());
  if (!status.ok()) return EndWith(context, status);
  return BeginWaiting<GetReply>(gate_, reply, [request](TrainerHost* host, Waiting<GetReply>::Done done) {
    host->Get(*request, AsGetReply(std::move(done)));
    return nullptr;
  });
}

grpc::ServerUnaryReactor* TrainerService::Sync(grpc::CallbackServerContext* context, const SyncRequest* request,
                                               SyncReply* reply) {
  const absl::Status status = callers_->Check(context->peer(), request->key());
  if (!status.ok()) return EndWith(context, status);
  return BeginWaiting<SyncReply>(gate_, reply, [request](TrainerHost* host, Waiting<SyncReply>::Done done) {
    return host->Sync(*request, std::move(done));
  });
}

grpc::ServerUnaryReactor* TrainerService::Wait(grpc::CallbackServerContext* context, const WaitRequest* request,
                                               GetReply* reply) {
  const absl::Status status = callers_->Check(context->peer(), request->key());
  if (!status.ok()) return EndWith(context, status);
  return BeginWaiting<GetReply>(gate_, reply, [request](TrainerHost* host, Waiting<GetReply>::Done done) {
    return host->Wait(*request, AsGetReply(std::move(done)));
  });
}

}  // namespace muster::agent
