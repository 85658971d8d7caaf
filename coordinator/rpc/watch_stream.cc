#include "coordinator/rpc/watch_stream.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "common/rpc/rpc.h"
#include "common/rpc/self_owned.h"

namespace muster::rpc {
namespace {

using server::Turn;

// Operations start under the mutex, so none follows Finish; gRPC never runs a reaction inside of them.
class WatchStream final : public grpc::ServerWriteReactor<WatchItem>, public SelfOwned<WatchStream> {
 public:
  static WatchStream* Start(const absl::StatusOr<Principal>& caller, const WatchRequest& request, bool private_jobs,
                            server::Loop* loop) {
    const std::shared_ptr<WatchStream> stream = Make(loop);
    if (caller.ok()) {
      stream->Open(request, *caller, private_jobs);
    } else {
      stream->End(caller.status());
    }
    return stream.get();
  }

  explicit WatchStream(server::Loop* loop) : loop_(loop) {}

  void OnWriteDone(bool ok) override {
    const MutexLock lock(mutex_);
    writing_ = false;
    broken_ |= !ok;
    Step();
  }

  void OnCancel() override {
    {
      const MutexLock lock(mutex_);
      broken_ = true;
      if (!writing_) Step();
    }
    loop_->Post([self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([self, &watches = turn.watches()] {
        if (self->watch_ != nullptr) watches.Close(self->watch_);
      });
    });
  }

  void OnDone() override { Release(); }

 private:
  void Open(const WatchRequest& request, const Principal& caller, bool private_jobs) {
    loop_->Post([=, self = shared_from_this()](Turn& turn) {
      turn.AfterCommit([=, &turn] {
        absl::StatusOr<JobId> job = JobId();
        if (!request.job().empty()) job = turn.core().Find(request.job());
        if (!job.ok()) return self->End(job.status());
        if (const Job* found = turn.core().Stored(*job); found != nullptr) {
          const Resource resource{found->owner(), private_jobs};
          if (absl::Status status = Authorize(caller, "/muster.v1.Jobs/Watch", resource); !status.ok()) {
            return self->End(status);
          }
        }
        server::WatchReader reader{.token = caller.token_id, .may_read = nullptr};
        if (private_jobs) {
          reader.may_read = [caller](const Job& of) { return MayReadJob(caller, {of.owner(), true}); };
        }
        absl::StatusOr<std::shared_ptr<server::Watch>> watch =
            turn.watches().Open(turn.core(), request, *job, std::move(reader));
        if (!watch.ok()) return self->End(watch.status());
        self->watch_ = *std::move(watch);
        self->Ask(turn.watches());
      });
    });
  }

  void Ask(server::Watches& watches) {
    {
      const MutexLock lock(mutex_);
      if (finished_) return;
    }
    watches.Next(watch_, [self = shared_from_this()](server::WatchPage page) { self->Deliver(std::move(page)); });
  }

  void End(const absl::Status& status) { Deliver({{}, true, status}); }

  void Deliver(server::WatchPage page) {
    const MutexLock lock(mutex_);
    page_ = std::move(page);
    next_ = 0;
    Step();
  }

  // Decides what to do when no write is in progress.
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    if (broken_) {
      finished_ = true;
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the reader disconnected"));
    } else if (next_ < page_.items.size()) {
      writing_ = true;
      StartWrite(&page_.items[next_++]);
    } else if (page_.end) {
      finished_ = true;
      Finish(ToGrpc(page_.status));
    } else {
      page_.items = {};
      loop_->Post([self = shared_from_this()](Turn& turn) {
        turn.AfterCommit([self, &watches = turn.watches()] { self->Ask(watches); });
      });
    }
  }

  server::Loop* const loop_;
  std::shared_ptr<server::Watch> watch_;  // touched by the loop's thread only

  Mutex mutex_;
  server::WatchPage page_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

grpc::ServerWriteReactor<WatchItem>* StartWatchStream(const absl::StatusOr<Principal>& caller,
                                                      const WatchRequest& request, bool private_jobs,
                                                      server::Loop* loop) {
  return WatchStream::Start(caller, request, private_jobs, loop);
}

}  // namespace muster::rpc
