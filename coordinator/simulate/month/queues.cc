// FIFO and Slurm's policy.
#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <queue>
#include <utility>
#include <vector>

#include "coordinator/scheduler/fair_share.h"
#include "coordinator/simulate/month/policies.h"

namespace muster::simulate {
namespace {

constexpr absl::Duration kHalfLife = absl::Hours(24 * 7), kOldest = absl::Hours(24 * 7);
constexpr double kAgeWeight = 1000, kFairShareWeight = 10'000, kSizeWeight = 1000;
constexpr size_t kMostPlanned = 500;  // bf_max_job_test

// The jobs that run and wait; they never stop before they have ended.
class Replay {
 public:
  explicit Replay(const Month& month) : month_(month), tally_(&month) {}

  // `schedule(waiting, now)` starts jobs, and removes them from those that wait.
  template <typename Schedule>
  MonthFigures Go(const char* policy, const Schedule& schedule) {
    size_t next = 0;
    while (next < month_.jobs.size() || !ends_.empty()) {
      const absl::Duration arrives = next < month_.jobs.size() ? month_.jobs[next].submitted : absl::InfiniteDuration();
      const absl::Duration ends = ends_.empty() ? absl::InfiniteDuration() : ends_.begin()->first;
      now_ = std::min(arrives, ends);
      while (!ends_.empty() && ends_.begin()->first == now_) {
        tally_.Ended(ends_.begin()->second, now_, true);
        running_.erase(ends_.begin()->second);
        ends_.erase(ends_.begin());
      }
      for (; next < month_.jobs.size() && month_.jobs[next].submitted == now_; ++next) {
        tally_.Submitted(next, now_);
        waiting_.push_back(next);
      }
      schedule(waiting_, now_);
    }
    return tally_.Conclude(policy);
  }

  uint64_t free() const { return kMonthSlots - tally_.held(); }
  const MonthJob& job(size_t index) const { return month_.jobs[index]; }
  // Jobs that run, with the time at which their limit is reached.
  const std::map<size_t, absl::Duration>& running() const { return running_; }
  void Start(size_t index) {
    const MonthJob& its = job(index);
    tally_.Started(index, now_);
    ends_.emplace(now_ + kMonthStart + its.runs, index);
    running_[index] = now_ + its.time_limit;
  }

 private:
  const Month& month_;
  Tally tally_;
  absl::Duration now_;
  std::deque<size_t> waiting_;
  std::multimap<absl::Duration, size_t> ends_;
  std::map<size_t, absl::Duration> running_;
};

// How many slots are free from when on, as far as it is planned.
class Profile {
 public:
  Profile(absl::Duration now, uint64_t slots) { free_[now] = static_cast<int64_t>(slots); }

  void Take(absl::Duration from, absl::Duration to, uint64_t slots) {
    const auto begin = Cut(from), end = Cut(to);
    for (auto at = begin; at != end; ++at) at->second -= static_cast<int64_t>(slots);
  }
  // The earliest start of a job that holds so many slots for that time.
  absl::Duration Earliest(absl::Duration time, uint64_t slots) const {
    auto start = free_.begin();
    for (auto at = start; at != free_.end() && at->first < start->first + time; ++at) {
      if (at->second >= static_cast<int64_t>(slots)) continue;
      start = std::next(at);
      if (start == free_.end()) break;  // not reached: in the end all slots are free
    }
    return start->first;
  }

 private:
  std::map<absl::Duration, int64_t>::iterator Cut(absl::Duration at) {
    const auto after = free_.upper_bound(at);
    return free_.emplace_hint(after, at, std::prev(after)->second);
  }
  std::map<absl::Duration, int64_t> free_;
};

// Use and shares of users in projects, as Slurm's classic fair share.
class FairShare {
 public:
  explicit FairShare(const Month& month) : month_(month) {}

  void Use(uint32_t project, uint32_t user, double slot_seconds) {
    of_user_[user] += slot_seconds, of_project_[project] += slot_seconds, all_ += slot_seconds;
  }
  void Decay(absl::Duration passed) {
    const double left = scheduler::Decayed(1, passed, kHalfLife);
    for (auto& [user, used] : of_user_) used *= left;
    for (auto& [project, used] : of_project_) used *= left;
    all_ *= left;
  }
  double Factor(uint32_t project, uint32_t user) const {
    const MonthProject& its = month_.projects[project];
    const double of_account = static_cast<double>(its.nominal) / kMonthSlots, share = of_account / its.users;
    const auto part = [this](const std::map<uint32_t, double>& of, uint32_t key) {
      const auto found = of.find(key);
      return found == of.end() || all_ == 0 ? 0 : found->second / all_;
    };
    const double used = part(of_user_, user), account = part(of_project_, project);
    const double effective = used + (account - used) * share / of_account;
    return std::exp2(-effective / share);
  }

 private:
  const Month& month_;
  std::map<uint32_t, double> of_user_, of_project_;
  double all_ = 0;
};

class Slurm {
 public:
  Slurm(const Month& month, Replay* replay) : replay_(replay), share_(month) {}

  void Schedule(std::deque<size_t>& waiting, absl::Duration now) {
    // What ran since the last pass; jobs that have ended meanwhile ended at this moment.
    const absl::Duration passed = now - last_;
    share_.Decay(passed);
    for (const auto& [job, ranks] : ran_) {
      share_.Use(replay_->job(job).project, replay_->job(job).user, absl::ToDoubleSeconds(passed) * ranks);
    }
    last_ = now;
    std::vector<std::pair<double, size_t>> order;  // of equal priority, the first submitted
    for (const size_t job : waiting) order.emplace_back(-Priority(replay_->job(job), now), job);
    std::sort(order.begin(), order.end());
    if (order.size() > kMostPlanned) order.resize(kMostPlanned);
    Profile profile(now, kMonthSlots);
    for (const auto& [job, until] : replay_->running()) {
      // One past its limit runs for the minute of its start longer at most.
      profile.Take(now, std::max(until, now + absl::Seconds(1)), replay_->job(job).ranks);
    }
    for (const auto& [priority, job] : order) {
      const MonthJob& its = replay_->job(job);
      const absl::Duration start = profile.Earliest(its.time_limit, its.ranks);
      profile.Take(start, start + its.time_limit, its.ranks);
      if (start > now) continue;
      replay_->Start(job);
      waiting.erase(std::find(waiting.begin(), waiting.end(), job));
    }
    ran_.clear();
    for (const auto& [job, until] : replay_->running()) ran_[job] = replay_->job(job).ranks;
  }

 private:
  double Priority(const MonthJob& job, absl::Duration now) const {
    const double age = std::min(1.0, absl::FDivDuration(now - job.submitted, kOldest));
    return kAgeWeight * age + kFairShareWeight * share_.Factor(job.project, job.user) +
           kSizeWeight * job.ranks / kMonthSlots;
  }
  Replay* const replay_;
  FairShare share_;
  std::map<size_t, uint32_t> ran_;
  absl::Duration last_ = absl::ZeroDuration();
};

}  // namespace

MonthFigures ReplayFifo(const Month& month) {
  Replay replay(month);
  return replay.Go("FIFO", [&](std::deque<size_t>& waiting, absl::Duration) {
    while (!waiting.empty() && replay.job(waiting.front()).ranks <= replay.free()) {
      replay.Start(waiting.front());
      waiting.pop_front();
    }
  });
}

MonthFigures ReplaySlurm(const Month& month) {
  Replay replay(month);
  Slurm slurm(month, &replay);
  return replay.Go("Slurm-like",
                   [&](std::deque<size_t>& waiting, absl::Duration now) { slurm.Schedule(waiting, now); });
}

}  // namespace muster::simulate
