// A call that may never return, such as one into a file system that does not answer. It runs on a thread of its own,
// which is not joined, so `call` owns all that it touches.
//
//   const auto call = PendingCall<std::string>::Start([path] { return Look(path); });
//   if (call->Wait(absl::Seconds(10))) Use(*call->answer());
//
// Whoever starts them bounds how many there are. Thread-safe.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace muster::agent {

template <typename T>
class PendingCall {
 public:
  // `returned`, if any, is called on that thread once the answer is there.
  static std::shared_ptr<PendingCall> Start(std::function<T()> call, std::function<void()> returned = nullptr) {
    const std::shared_ptr<PendingCall> pending(new PendingCall);
    std::thread([pending, call = std::move(call), returned = std::move(returned)] {
      T answer = call();
      {
        const MutexLock lock(pending->mutex_);
        pending->answer_ = std::move(answer);
      }
      eventfd_write(pending->returned_, 1);
      if (returned != nullptr) returned();
    }).detach();
    return pending;
  }
  ~PendingCall() { close(returned_); }
  PendingCall(const PendingCall&) = delete;
  PendingCall& operator=(const PendingCall&) = delete;

  // None: it has not returned.
  std::optional<T> answer() const {
    const MutexLock lock(mutex_);
    return answer_;
  }

  // Until it has returned; false: not within `patience`, or descriptor `cancelled` (-1: none) is readable.
  bool Wait(absl::Duration patience, int cancelled = -1) const {
    const RealClock clock;
    const SteadyTime deadline = clock.Read().steady + patience;
    while (true) {
      const absl::Duration left = absl::Ceil(deadline - clock.Read().steady, absl::Milliseconds(1));
      pollfd waiting[2] = {{returned_, POLLIN, 0}, {cancelled, POLLIN, 0}};
      const int ready =
          poll(waiting, 2, static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 60'000)));
      if (ready > 0 && waiting[0].revents != 0) return true;
      if (ready > 0 || left <= absl::ZeroDuration()) return false;
    }
  }

 private:
  PendingCall() = default;

  const int returned_ = eventfd(0, EFD_CLOEXEC);  // readable from then on
  mutable Mutex mutex_;
  std::optional<T> answer_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace muster::agent
