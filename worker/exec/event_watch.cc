#include "worker/exec/event_watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"

namespace muster::exec {
namespace {

constexpr absl::Duration kFirstLook = absl::Seconds(2);
constexpr absl::Duration kEagerScans = absl::Minutes(1);
constexpr absl::Duration kRarestScans = absl::Minutes(5);
constexpr int kScanShare = 50;

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
  bool abandoned ABSL_GUARDED_BY(mutex) = false;  // what is read from here on is not taken
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
  state_->ended = state_->abandoned = true;
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
  SteadyTime scan_at = begun;
  absl::Duration rare = state->intervals.scan;
  for (bool last = false, done = false; !done;) {
    {
      std::unique_lock<Mutex> lock(state->mutex);
      state->changed.wait_for(lock, absl::ToChronoNanoseconds(state->intervals.read),
                              [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return state->ended; });
      if (state->abandoned) return;
      if (state->ended && !last) scan_at = SteadyTime();  // a last time
      last = state->ended;
    }
    const SteadyTime now = state->clock.Read().steady;
    if (now >= scan_at) {
      state->folder.Scan();
      const SteadyTime after = state->clock.Read().steady;
      absl::Duration pause = state->intervals.scan;
      if (!state->folder.has_files() && after - begun < kEagerScans) {
        pause = absl::ZeroDuration();
      } else if (!state->folder.has_files()) {
        pause = rare = std::min(2 * rare, kRarestScans);
      }
      scan_at = after + std::max(pause, kScanShare * (after - now));
    }
    std::vector<MetricPoint> points = state->folder.Read(last);
    const std::string warning = state->folder.TakeWarning();
    done = last && !state->folder.more();
    const MutexLock lock(state->mutex);
    state->points.insert(state->points.end(), std::make_move_iterator(points.begin()),
                         std::make_move_iterator(points.end()));
    state->points = Thin(std::move(state->points), EventFolder::kMostWaiting);
    if (!warning.empty()) absl::StrAppend(&state->warning, state->warning.empty() ? "" : "; ", warning);
    state->done = done;
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
  state_->abandoned = true;
  return std::exchange(state_->points, {});
}

std::string EventWatch::TakeWarning() {
  const MutexLock lock(state_->mutex);
  return std::exchange(state_->warning, "");
}

}  // namespace muster::exec
