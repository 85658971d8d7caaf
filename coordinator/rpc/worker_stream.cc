#include "coordinator/rpc/worker_stream.h"

#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"
#include "coordinator/rpc/worker_message.h"

namespace muster::rpc {
namespace {

using server::Turn;

// Unsent messages. A newer message replaces an older one of the same kind and rank.
class Outgoing {
 public:
  void Add(CoordinatorMessage message) {
    RankId rank;
    if (message.has_records_ack()) rank = IdOf(message.records_ack().key());
    if (message.has_logs_ack()) rank = IdOf(message.logs_ack().key());
    messages_[{message.body_case(), std::move(rank)}] = std::move(message);  // Welcome has the lowest case
  }
  bool empty() const { return messages_.empty(); }
  CoordinatorMessage Take() {
    CoordinatorMessage first = std::move(messages_.begin()->second);
    messages_.erase(messages_.begin());
    return first;
  }

 private:
  static RankId IdOf(const RankKey& key) { return {JobId(key.job()), key.generation(), key.rank()}; }
  std::map<std::pair<int, RankId>, CoordinatorMessage> messages_;
};

// Operations start under the mutex, so none follows Finish; gRPC never runs a reaction inside of them.
class WorkerStream final : public grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>,
                           public server::WorkerLink,
                           public SelfOwned<WorkerStream> {
 public:
  WorkerStream(std::string node, server::Loop* loop) : node_(std::move(node)), loop_(loop) {}

  static WorkerStream* Start(const absl::StatusOr<Principal>& caller, server::Loop* loop) {
    const std::shared_ptr<WorkerStream> stream = Make(caller.ok() ? caller->node : "", loop);
    const MutexLock lock(stream->mutex_);
    if (!caller.ok()) stream->end_ = caller.status();
    stream->Read();
    stream->Step();
    return stream.get();
  }

  // ---- WorkerLink, on the loop's thread ----
  void Send(CoordinatorMessage message) override {
    const MutexLock lock(mutex_);
    if (end_.has_value()) return;
    outgoing_.Add(std::move(message));
    Step();
  }

  void Close(const absl::Status& status) override {
    const MutexLock lock(mutex_);
    if (!end_.has_value()) end_ = status;
    Step();
  }

  // ---- Reactions ----
  void OnReadDone(bool ok) override {
    absl::Status status = absl::OkStatus();
    if (ok) status = CheckWorkerMessage(std::exchange(first_, false), incoming_);
    if (ok && status.ok()) status = CheckNode();
    if (!ok || !status.ok()) {
      Leave(status);
      return;
    }
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.workers().Receive(turn, self, self->incoming_);
      turn.AfterCommit([self] {
        const MutexLock lock(self->mutex_);
        self->Read();
      });
    });
  }

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    writing_ = false;
    if (!ok && !end_.has_value()) end_ = absl::CancelledError("the worker disconnected");
    Step();
  }

  void OnCancel() override { Leave(absl::CancelledError("the worker disconnected")); }

  void OnDone() override { Release(); }

 private:
  // Later messages are attributed to the node that the Hello names.
  absl::Status CheckNode() const {
    if (node_.empty() || !incoming_.has_hello() || incoming_.hello().node().id() == node_) return absl::OkStatus();
    return absl::PermissionDeniedError(absl::StrCat(
        "the certificate is for node ", node_, ", it cannot speak for node ", incoming_.hello().node().id(),
        ": was node_id in the worker's state directory changed? Remove the folder trust beside it and join again"));
  }

  // The worker has closed its side, or must close it.
  void Leave(const absl::Status& status) {
    loop_->Post([self = shared_from_this()](Turn& turn) { turn.workers().Gone(turn, self.get()); });
    Close(status);
  }

  void Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!end_.has_value()) StartRead(&incoming_);
  }

  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_ || writing_) return;
    if (end_.has_value()) {
      finished_ = true;
      Finish(ToGrpc(*end_));
    } else if (!outgoing_.empty()) {
      writing_ = true;
      current_ = outgoing_.Take();
      StartWrite(&current_);
    }
  }

  const std::string node_;  // from the certificate; empty: any
  server::Loop* const loop_;
  WorkerMessage incoming_;  // between a read and the loop: one at a time
  bool first_ = true;       // touched by OnReadDone only

  Mutex mutex_;
  Outgoing outgoing_ ABSL_GUARDED_BY(mutex_);
  CoordinatorMessage current_ ABSL_GUARDED_BY(mutex_);  // being written
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>* StartWorkerStream(const absl::StatusOr<Principal>& caller,
                                                                              server::Loop* loop) {
  return WorkerStream::Start(caller, loop);
}

}  // namespace muster::rpc
