// Notices a program that does nothing: it uses no CPU and no GPU, and reads and writes nothing. Pure, but for
// `gpu_busy`.
//
//   IdleWatch watch(absl::Minutes(30));
//   if (watch.IsDue(now) && watch.Look(ReadActivity(pid), gpu_busy, now)) ...  // warn
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/time/time.h"
#include "common/clock.h"

namespace muster::exec {

// Of a program and all its descendants, since they began.
struct Activity {
  absl::Duration cpu;
  uint64_t bytes = 0;  // that they have read and written: files, pipes, their output
};

class IdleWatch {
 public:
  // Zero: never idle.
  explicit IdleWatch(absl::Duration limit);

  // Often enough for the limit, and rarely enough to cost nothing.
  bool IsDue(SteadyTime now) const { return limit_ > absl::ZeroDuration() && now >= due_at_; }
  // True once the program has been idle for the limit; again after it has done something. Less than a hundredth of a
  // core counts as idle: interpreters have threads that wake up now and then. `gpu_busy` is asked only before it is
  // true, and again at the next look while it gives nullopt; `anew`: for the first time.
  bool Look(const Activity& activity, const std::function<std::optional<bool>(bool anew)>& gpu_busy, SteadyTime now);
  absl::Duration idle() const { return idle_; }

 private:
  const absl::Duration limit_, interval_;
  SteadyTime due_at_, looked_at_;
  std::optional<Activity> last_;
  absl::Duration idle_;
  bool asked_ = false, warned_ = false;
};

}  // namespace muster::exec
