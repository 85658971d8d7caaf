// The worker daemon's event loop: state owned by its thread needs no locks. Held by shared_ptr in every poster, so that
// a late gRPC callback can still post.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace muster::agent {

class EventLoop : public std::enable_shared_from_this<EventLoop> {
 public:
  using Callback = std::function<void()>;

  // By std::make_shared. `clock` outlives the loop and is thread-safe.
  explicit EventLoop(const Clock* clock);
  ~EventLoop();

  // ---- From any thread. After Stop only RunPending runs what is posted; after Run timers are dropped, since what they
  // hold may hold the loop. ----
  void Post(Callback callback);
  void PostAfter(absl::Duration delay, Callback callback);

  // ---- From the loop's thread, or before Run. ----
  // Calls back while `fd` is readable; the caller closes it, after Unwatch.
  void Watch(int fd, Callback callback);
  void Unwatch(int fd);

  void Run();  // until Stop
  // After Run, during shutdown: runs posted callbacks, or waits briefly for one.
  void RunPending();
  void Stop();  // after the running callback; from the loop's thread
  Now now() const { return clock_->Read(); }

 private:
  int WaitMilliseconds();
  void RunPosted();
  void RunTimers();

  const Clock* const clock_;
  int wake_ = -1;
  bool stopped_ = false;
  std::map<int, Callback> watched_;

  Mutex mutex_;
  std::vector<Callback> posted_ ABSL_GUARDED_BY(mutex_);
  std::multimap<SteadyTime, Callback> timers_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nothing runs timers any more
};

}  // namespace muster::agent
