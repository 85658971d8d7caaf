#include "worker/exec/idle_watch.h"

#include <algorithm>

namespace muster::exec {
namespace {

constexpr double kIdleShare = 0.01;  // of a core
constexpr absl::Duration kLongestInterval = absl::Seconds(10);

}  // namespace

IdleWatch::IdleWatch(absl::Duration limit) : limit_(limit), interval_(std::min(limit / 4, kLongestInterval)) {}

bool IdleWatch::Look(const Activity& activity, const std::function<std::optional<bool>(bool)>& gpu_busy,
                     SteadyTime now) {
  const absl::Duration since = now - looked_at_;
  due_at_ = now + interval_;
  looked_at_ = now;
  const std::optional<Activity> before = std::exchange(last_, activity);
  // A process that has ended takes what it used out of the sums.
  const bool idle = before.has_value() && activity.bytes == before->bytes && activity.cpu >= before->cpu &&
                    activity.cpu - before->cpu <= kIdleShare * since;
  if (!idle) {
    idle_ = absl::ZeroDuration();
    asked_ = warned_ = false;
    return false;
  }
  // Longer between two looks: this process did not run either, because the machine slept or the cgroup was frozen.
  idle_ += std::min(since, 2 * interval_);
  if (idle_ < limit_ || warned_) return false;
  const std::optional<bool> busy = gpu_busy(/*anew=*/!std::exchange(asked_, true));
  if (!busy.has_value()) return false;
  asked_ = false;
  if (*busy) {
    idle_ = absl::ZeroDuration();
    return false;
  }
  return warned_ = true;
}

}  // namespace muster::exec
