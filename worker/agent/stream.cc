#include "worker/agent/stream.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <deque>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::agent {

// Touched by the loop's thread only.
struct CoordinatorStream::Owner {
  CoordinatorStream* stream = nullptr;  // null: gone
  Handler handler;
};

// Lives until OnDone, whatever becomes of the stream object.
class CoordinatorStream::Session final : public grpc::ClientBidiReactor<WorkerMessage, CoordinatorMessage>,
                                         public rpc::SelfOwned<Session> {
 public:
  Session(std::shared_ptr<EventLoop> loop, const std::shared_ptr<grpc::Channel>& channel, std::shared_ptr<Owner> owner)
      : loop_(std::move(loop)), owner_(std::move(owner)), stub_(Workers::NewStub(channel)) {}

  void Start(const std::string& token, const Hello& hello) {
    rpc::AddCallMetadata(token, context_);
    stub_->async()->Connect(&context_, this);
    WorkerMessage first;
    *first.mutable_hello() = hello;
    Send(std::move(first));
    StartRead(&incoming_);
    // Writes are started from the loop's thread at any time until the stream ends.
    AddHold();
    StartCall();
  }

  void Send(WorkerMessage message) {
    absl::MutexLock lock(&mutex_);
    if (over_ || closing_) return;
    outgoing_.push_back(std::move(message));
    WriteNext();
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    WriteNext();
  }

  void Break(const absl::Status& why) {
    {
      absl::MutexLock lock(&mutex_);
      if (!why_.has_value()) why_ = why;
    }
    context_.TryCancel();
  }

  size_t queued() const {
    absl::MutexLock lock(&mutex_);
    return outgoing_.size();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return StopWriting();
    loop_->Post([self = shared_from_this(), message = std::move(incoming_)]() mutable {
      CoordinatorStream* stream = self->owner_->stream;
      if (stream != nullptr && stream->session_ == self) self->owner_->handler.received(std::move(message));
    });
    incoming_.Clear();
    StartRead(&incoming_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return StopWriting();
    absl::MutexLock lock(&mutex_);
    outgoing_.pop_front();
    writing_ = false;
    WriteNext();
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status why = rpc::FromGrpc(status);
    if (why.ok()) why = absl::UnavailableError("the coordinator closed the stream");
    {
      absl::MutexLock lock(&mutex_);
      if (why_.has_value()) why = *why_;
    }
    loop_->Post([self = Release(), why = std::move(why)] {
      CoordinatorStream* stream = self->owner_->stream;
      if (stream == nullptr || stream->session_ != self) return;
      stream->session_.reset();
      self->owner_->handler.ended(why);
    });
  }

 private:
  // The first element stays in the queue while gRPC has it.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || over_ || closed_) return;
    if (!outgoing_.empty()) {
      writing_ = true;
      StartWrite(&outgoing_.front());
    } else if (closing_) {
      closed_ = true;
      StartWritesDone();
    }
  }

  void StopWriting() {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(over_, true)) return;
    RemoveHold();
  }

  const std::shared_ptr<EventLoop> loop_;
  const std::shared_ptr<Owner> owner_;
  const std::unique_ptr<Workers::Stub> stub_;
  grpc::ClientContext context_;
  CoordinatorMessage incoming_;

  mutable absl::Mutex mutex_;
  std::deque<WorkerMessage> outgoing_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> why_ ABSL_GUARDED_BY(mutex_);
};

CoordinatorStream::CoordinatorStream(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token,
                                     Handler handler)
    : loop_(loop),
      channel_(std::move(channel)),
      token_(std::move(token)),
      owner_(std::make_shared<Owner>(Owner{this, std::move(handler)})) {}

CoordinatorStream::~CoordinatorStream() {
  owner_->stream = nullptr;
  if (session_ != nullptr) session_->Break(absl::CancelledError("the worker ends"));
}

void CoordinatorStream::Open(const Hello& hello) {
  session_ = Session::Make(loop_->shared_from_this(), channel_, owner_);
  session_->Start(token_, hello);
}

void CoordinatorStream::Send(WorkerMessage message) {
  if (session_ != nullptr) session_->Send(std::move(message));
}

void CoordinatorStream::Close() {
  if (session_ != nullptr) session_->Close();
}

void CoordinatorStream::Break(const absl::Status& why) {
  if (session_ != nullptr) session_->Break(why);
}

size_t CoordinatorStream::queued() const { return session_ == nullptr ? 0 : session_->queued(); }

}  // namespace muster::agent
