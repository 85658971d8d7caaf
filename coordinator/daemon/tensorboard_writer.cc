#include "coordinator/daemon/tensorboard_writer.h"

#include <chrono>
#include <condition_variable>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/log/log.h"
#include "common/mutex.h"

namespace muster::server {
namespace {

constexpr auto kSaveAfter = std::chrono::seconds(2);
constexpr auto kRetryAfter = std::chrono::seconds(5);

}  // namespace

// State shared with callbacks on the loop's thread.
struct TensorBoardWriter::Shared {
  Mutex mutex;
  std::condition_variable_any changed;
  std::optional<WatchPage> page ABSL_GUARDED_BY(mutex);
  std::vector<JobId> forgotten ABSL_GUARDED_BY(mutex);
  bool stopping ABSL_GUARDED_BY(mutex) = false;

  std::shared_ptr<Watch> watch;  // touched by the loop's thread only

  void Deliver(WatchPage delivered) {
    const MutexLock lock(mutex);
    page = std::move(delivered);
    changed.notify_one();
  }
};

TensorBoardWriter::TensorBoardWriter(std::unique_ptr<metrics::TensorBoardLog> log, Loop* loop)
    : log_(std::move(log)), loop_(loop), shared_(std::make_shared<Shared>()), thread_([this] { Run(); }) {}

TensorBoardWriter::~TensorBoardWriter() { Stop(); }

void TensorBoardWriter::Stop() {
  if (!thread_.joinable()) return;
  {
    const MutexLock lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_one();
  }
  thread_.join();
  loop_->Post([shared = shared_](Turn& turn) {
    turn.AfterCommit([shared, &watches = turn.watches()] {
      if (shared->watch != nullptr) watches.Close(shared->watch);
    });
  });
}

void TensorBoardWriter::Forget(const JobId& job) {
  const MutexLock lock(shared_->mutex);
  shared_->forgotten.push_back(job);
  shared_->changed.notify_one();
}

// Requested the reader's first page, or a page with an error is on its way.
void TensorBoardWriter::Open() {
  loop_->Post([shared = shared_, cursor = log_->cursor()](Turn& turn) {
    turn.AfterCommit([shared, cursor, &turn] {
      WatchRequest request;
      request.set_follow(true);
      request.set_events(true);
      request.set_metrics(true);
      request.set_cursor(cursor);
      absl::StatusOr<std::shared_ptr<Watch>> watch = turn.watches().Open(turn.core(), request, JobId());
      if (!watch.ok()) return shared->Deliver({{}, true, watch.status()});
      shared->watch = *std::move(watch);
      turn.watches().Next(shared->watch, [shared](WatchPage page) { shared->Deliver(std::move(page)); });
    });
  });
}

void TensorBoardWriter::RemoveForgotten() {
  std::vector<JobId> forgotten;
  {
    const MutexLock lock(shared_->mutex);
    forgotten = std::exchange(shared_->forgotten, {});
  }
  for (const JobId& job : forgotten) log_->Remove(job);
}

void TensorBoardWriter::WriteUntilDone(const WatchPage& page) {
  bool reported = false;
  while (true) {
    const absl::Status status = log_->Write(page.items);
    if (status.ok()) break;
    if (!std::exchange(reported, true)) LogError("cannot write TensorBoard files; retrying", {{"error", status}});
    const MutexLock lock(shared_->mutex);
    const auto retry_at = std::chrono::steady_clock::now() + kRetryAfter;
    while (!shared_->stopping && shared_->changed.wait_until(shared_->mutex, retry_at) == std::cv_status::no_timeout) {
    }
    if (shared_->stopping) return;
  }
  if (reported) LogInfo("writing TensorBoard files again");
}

void TensorBoardWriter::Run() {
  Open();
  auto save_at = std::chrono::steady_clock::time_point::max();
  for (bool stopping = false; !stopping;) {
    std::optional<WatchPage> page;
    {
      const MutexLock lock(shared_->mutex);
      while (!shared_->stopping && !shared_->page.has_value() && shared_->forgotten.empty()) {
        if (!log_->unsaved()) {
          shared_->changed.wait(shared_->mutex);
        } else if (shared_->changed.wait_until(shared_->mutex, save_at) == std::cv_status::timeout) {
          break;
        }
      }
      page = std::exchange(shared_->page, std::nullopt);
      stopping = shared_->stopping;
    }
    if (page.has_value()) {
      const bool was_saved = !log_->unsaved();
      WriteUntilDone(*page);
      if (was_saved && log_->unsaved()) save_at = std::chrono::steady_clock::now() + kSaveAfter;
    }
    // After the page, which may still hold items of the job.
    RemoveForgotten();
    if (log_->unsaved() && (stopping || std::chrono::steady_clock::now() >= save_at)) {
      const absl::Status saved = log_->Save();
      if (!saved.ok()) LogError("cannot save TensorBoard files", {{"error", saved}});
      save_at = std::chrono::steady_clock::now() + kSaveAfter;
    }
    if (!page.has_value() || stopping) continue;
    if (page->end && absl::IsInvalidArgument(page->status)) {
      LogWarn("the TensorBoard folder belongs to another store; rewriting its files");
      log_->Restart();
      Open();
    } else if (!page->end) {
      loop_->Post([shared = shared_](Turn& turn) {
        turn.AfterCommit([shared, &watches = turn.watches()] {
          watches.Next(shared->watch, [shared](WatchPage next) { shared->Deliver(std::move(next)); });
        });
      });
    }
  }
}

}  // namespace muster::server
