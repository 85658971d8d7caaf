// Virtual time: planned work, in order. Work planned for the same instant runs in the order in which it was planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "absl/time/time.h"
#include "common/clock.h"

namespace muster::simulate {

// Not thread-safe.
class Agenda {
 public:
  using Work = std::function<void()>;

  const Clock* clock() const { return &clock_; }
  SteadyTime now() const { return clock_.Read().steady; }
  absl::Duration since_start() const { return now() - start_; }

  void At(SteadyTime when, Work work) { planned_.emplace(std::pair(std::max(when, now()), ++order_), std::move(work)); }
  void After(absl::Duration delay, Work work) { At(now() + delay, std::move(work)); }

  // Runs the next work if it is due at `until` or earlier. False: there is none.
  bool RunNext(SteadyTime until) {
    if (planned_.empty() || planned_.begin()->first.first > until) return false;
    auto next = planned_.extract(planned_.begin());
    clock_.Advance(next.key().first - now());
    next.mapped()();
    return true;
  }
  // Moves the wall clock only.
  void JumpWall(absl::Duration by) { clock_.JumpWall(by); }

 private:
  FakeClock clock_;
  const SteadyTime start_ = clock_.Read().steady;
  uint64_t order_ = 0;
  std::map<std::pair<SteadyTime, uint64_t>, Work> planned_;
};

}  // namespace muster::simulate
