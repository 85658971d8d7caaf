#include "cli/follower.h"

#include <algorithm>
#include <deque>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "cli/interrupt.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

// Items to read ahead for a slow terminal.
constexpr size_t kReadAhead = 1024;
constexpr absl::Duration kFirstReconnectPause = absl::Milliseconds(250);
constexpr absl::Duration kLongestReconnectPause = absl::Seconds(2);
// How soon Ctrl-C is noticed.
constexpr absl::Duration kFollowPoll = absl::Milliseconds(50);

// Errors of the connection, not of the request.
bool Broken(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         (absl::IsInternal(status) && absl::StrContains(status.message(), "RST_STREAM")) ||
         (absl::IsUnknown(status) && absl::StrContains(status.message(), "Stream removed"));
}

}  // namespace

class Follower::Loop {
 public:
  Loop(Client& client, const v1::WatchRequest& request, absl::Duration give_up_after)
      : client_(client), give_up_after_(give_up_after), request_(request), thread_([this] { Run(); }) {}

  ~Loop() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
      if (call_) call_->Cancel();
    }
    thread_.join();
  }

  Followed Next(absl::Duration at_most) {
    const absl::Time deadline = absl::Now() + at_most;
    absl::MutexLock lock(&mutex_);
    while (queue_.empty()) {
      if (Interrupted()) return Followed{Followed::Kind::kInterrupted, {}, absl::OkStatus()};
      const absl::Time until = std::min(deadline, absl::Now() + kFollowPoll);
      mutex_.AwaitWithDeadline(absl::Condition(this, &Loop::HasSomething), until);
      if (queue_.empty() && absl::Now() >= deadline) return Followed{};
    }
    if (Interrupted()) return Followed{Followed::Kind::kInterrupted, {}, absl::OkStatus()};
    Followed next = std::move(queue_.front());
    // The final item stays.
    if (next.kind == Followed::Kind::kEnded) return queue_.front() = next;
    queue_.pop_front();
    return next;
  }

 private:
  bool HasSomething() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !queue_.empty(); }
  bool HasRoom() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return queue_.size() < kReadAhead || stop_; }

  // False: the follower is being destroyed.
  bool Push(Followed followed) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &Loop::HasRoom));
    if (stop_) return false;
    queue_.push_back(std::move(followed));
    return true;
  }

  // Reads one stream to its end.
  absl::Status ReadStream() {
    std::unique_ptr<WatchCall> call = client_.Watch(request_);
    WatchCall* reader = call.get();
    {
      absl::MutexLock lock(&mutex_);
      call_ = std::move(call);
      if (stop_) call_->Cancel();
    }
    v1::WatchItem item;
    while (reader->Read(item)) {
      last_contact_ = absl::Now();
      if (std::exchange(lost_, false) && !Push({Followed::Kind::kBack, {}, absl::OkStatus()})) break;
      Note(item);
      if (!Push({Followed::Kind::kItem, std::move(item), absl::OkStatus()})) break;
      item.Clear();
    }
    absl::MutexLock lock(&mutex_);
    if (stop_) call_->Cancel();
    const absl::Status status = call_->Finish();
    call_.reset();
    return status;
  }

  void Note(const v1::WatchItem& item) {
    if (!item.cursor().empty()) {
      request_.set_cursor(item.cursor());
      request_.clear_tail();  // belongs to the first call
    }
    if (item.has_snapshot()) state_ = item.snapshot().state();
    if (item.has_event() && item.event().job_state() != v1::JOB_STATE_UNSPECIFIED) state_ = item.event().job_state();
  }

  // A stream of logs or metrics alone does not say so.
  bool JobHasEnded() {
    if (request_.job().empty()) return false;
    if (Ended(state_)) return true;
    const absl::StatusOr<v1::GetJobReply> got = client_.GetJob(request_.job());
    if (got.ok()) state_ = got->job().state();
    return Ended(state_);
  }

  bool Stopping() {
    absl::MutexLock lock(&mutex_);
    return stop_;
  }

  void Run() {
    absl::Duration pause = kFirstReconnectPause;
    bool reached = false;
    while (true) {
      const absl::Time before = absl::Now();
      if (!reached) last_contact_ = before;
      const absl::Status status = ReadStream();
      if (Stopping()) return;
      if (last_contact_ > before) {
        reached = true;
        pause = kFirstReconnectPause;
      }
      // A coordinator that shuts down may end its streams without an error.
      const bool cut_short = status.ok() && request_.follow() && !JobHasEnded();
      if (!cut_short && (status.ok() || !Broken(status))) {
        Push({Followed::Kind::kEnded, {}, status});
        return;
      }
      if (!reached || absl::Now() - last_contact_ > give_up_after_) {
        // A plain call returns the reason.
        absl::Status why = client_.Version().status();
        if (why.ok() && !reached) why = status.ok() ? absl::UnavailableError("the stream ended at once") : status;
        if (!why.ok()) {
          Push({Followed::Kind::kEnded, {}, why});
          return;
        }
      }
      if (!std::exchange(lost_, true) && !Push({Followed::Kind::kLost, {}, status})) return;
      Pause(pause);
      pause = std::min(pause * 2, kLongestReconnectPause);
    }
  }

  void Pause(absl::Duration pause) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stop_), pause);
  }

  Client& client_;
  const absl::Duration give_up_after_;

  // Used by the reading thread only.
  v1::WatchRequest request_;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  bool lost_ = false;
  absl::Time last_contact_ = absl::InfinitePast();

  absl::Mutex mutex_;
  std::deque<Followed> queue_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<WatchCall> call_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread thread_;  // last, since it uses the other members
};

Follower::Follower(Client& client, const v1::WatchRequest& request, absl::Duration give_up_after)
    : loop_(std::make_unique<Loop>(client, request, give_up_after)) {}
Follower::~Follower() = default;
Followed Follower::Next(absl::Duration at_most) { return loop_->Next(at_most); }

}  // namespace muster::cli
