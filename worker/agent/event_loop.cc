#include "worker/agent/event_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/check.h"

namespace muster::agent {

EventLoop::EventLoop(const Clock* clock) : clock_(clock), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MUSTER_CHECK(wake_ >= 0, "eventfd for the daemon's event loop: ", std::strerror(errno),
               "; raise its limit of open files (ulimit -n)");
}

EventLoop::~EventLoop() { close(wake_); }

void EventLoop::Post(Callback callback) {
  const MutexLock lock(mutex_);
  posted_.push_back(std::move(callback));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof one);
}

void EventLoop::PostAfter(absl::Duration delay, Callback callback) {
  const MutexLock lock(mutex_);
  if (over_) return;
  timers_.emplace(clock_->Read().steady + delay, std::move(callback));
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof one);
}

void EventLoop::Watch(int fd, Callback callback) { watched_[fd] = std::move(callback); }

void EventLoop::Unwatch(int fd) { watched_.erase(fd); }

void EventLoop::Stop() { stopped_ = true; }

int EventLoop::WaitMilliseconds() {
  const MutexLock lock(mutex_);
  if (!posted_.empty()) return 0;
  if (timers_.empty()) return -1;
  const absl::Duration wait = timers_.begin()->first - clock_->Read().steady;
  return static_cast<int>(
      std::clamp<int64_t>(absl::ToInt64Milliseconds(absl::Ceil(wait, absl::Milliseconds(1))), 0, 60'000));
}

void EventLoop::RunPosted() {
  uint64_t ignored = 0;
  [[maybe_unused]] const ssize_t n = read(wake_, &ignored, sizeof ignored);
  std::vector<Callback> posted;
  {
    const MutexLock lock(mutex_);
    posted.swap(posted_);
  }
  for (Callback& callback : posted) callback();
}

void EventLoop::RunPending() {
  pollfd wake{wake_, POLLIN, 0};
  poll(&wake, 1, 10);
  RunPosted();
}

void EventLoop::RunTimers() {
  const SteadyTime now = clock_->Read().steady;
  while (!stopped_) {
    Callback callback;
    {
      const MutexLock lock(mutex_);
      if (timers_.empty() || timers_.begin()->first > now) return;
      callback = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    }
    callback();
  }
}

void EventLoop::Run() {
  while (!stopped_) {
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
    for (const auto& [fd, callback] : watched_) fds.push_back({fd, POLLIN, 0});
    poll(fds.data(), fds.size(), WaitMilliseconds());
    RunPosted();
    RunTimers();
    for (size_t i = 1; i < fds.size() && !stopped_; ++i) {
      // An earlier callback may have unwatched it.
      const auto watched = fds[i].revents == 0 ? watched_.end() : watched_.find(fds[i].fd);
      if (watched == watched_.end()) continue;
      const Callback callback = watched->second;
      callback();
    }
  }
  std::multimap<SteadyTime, Callback> dropped;
  const MutexLock lock(mutex_);
  over_ = true;
  dropped.swap(timers_);
}

}  // namespace muster::agent
