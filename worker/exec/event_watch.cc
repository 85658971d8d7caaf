#include "worker/exec/event_watch.h"

#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace muster::exec {
namespace {

constexpr size_t kMostWaiting = 2000;  // points
constexpr absl::Duration kFirstLook = absl::Seconds(2);
constexpr absl::Duration kEagerScans = absl::Minutes(1);

}  // namespace

struct EventWatch::State {
  State(EventFolder f, Intervals i) : folder(std::move(f)), intervals(i) {}

  EventFolder folder;  // the thread's alone
  const Intervals intervals;
  const RealClock clock;
  Mutex mutex;
  std::condition_variable_any changed;
  std::vector<MetricPoint> points ABSL_GUARDED_BY(mutex);
  std::string warning ABSL_GUARDED_BY(mutex);
  bool begun ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool done ABSL_GUARDED_BY(mutex) = false;
};

EventWatch::EventWatch(EventFolder folder, Intervals intervals) ABSL_NO_THREAD_SAFETY_ANALYSIS
    : state_(std::make_shared<State>(std::move(folder), intervals)) {
  std::thread([state = state_] { Run(state); }).detach();
  std::unique_lock<Mutex> lock(state_->mutex);
  state_->changed.wait_for(lock, absl::ToChronoNanoseconds(kFirstLook),
                           [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state_->begun; });
}

EventWatch::~EventWatch() {
  const MutexLock lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
}

void EventWatch::Run(const std::shared_ptr<State>& state) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  state->folder.SkipExisting();
  {
    const MutexLock lock(state->mutex);
    state->begun = true;
    state->changed.notify_all();
  }
  const SteadyTime begun = state->clock.Read().steady;
  SteadyTime scanned;
  bool found = false;
  for (bool last = false; !last;) {
    {
      std::unique_lock<Mutex> lock(state->mutex);
      state->changed.wait_for(lock, absl::ToChronoNanoseconds(state->intervals.read),
                              [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->ended; });
      last = state->ended;
    }
    const SteadyTime now = state->clock.Read().steady;
    const bool eager = !found && now - begun < kEagerScans;
    if (last || eager || now - scanned >= state->intervals.scan) {
      state->folder.Scan();
      scanned = now;
    }
    std::vector<MetricPoint> points = state->folder.Read(last);
    found = found || !points.empty();
    std::string warning = state->folder.TakeWarning();
    const MutexLock lock(state->mutex);
    state->points.insert(state->points.end(), std::make_move_iterator(points.begin()),
                         std::make_move_iterator(points.end()));
    state->points = Thin(std::move(state->points), kMostWaiting);
    if (!warning.empty()) state->warning = std::move(warning);
    state->done = last;
    state->changed.notify_all();
  }
}

std::vector<MetricPoint> EventWatch::Take() {
  const MutexLock lock(state_->mutex);
  return std::exchange(state_->points, {});
}

std::vector<MetricPoint> EventWatch::Finish(absl::Duration at_most) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  std::unique_lock<Mutex> lock(state_->mutex);
  state_->ended = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, absl::ToChronoNanoseconds(at_most),
                           [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state_->done; });
  return std::exchange(state_->points, {});
}

std::string EventWatch::TakeWarning() {
  const MutexLock lock(state_->mutex);
  return std::exchange(state_->warning, "");
}

}  // namespace muster::exec
