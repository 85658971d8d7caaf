// What a replay of a month shows of how the cluster was shared.
#pragma once

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/simulate/month/workload.h"

namespace muster::simulate {

// Time in the queue, of a class of jobs; what a preempted job waits again counts, too.
struct Waits {
  std::string of;
  uint64_t jobs = 0;
  absl::Duration p50, p95, max;
};

struct MonthFigures {
  std::string policy;
  double utilization = 0;      // held slots, of all slots, within the month
  double overhead = 0;         // starts, stops and what is trained again, of the held time of all jobs
  absl::Duration drained;      // from the end of the month until the last job ended
  std::vector<Waits> by_size;  // the first: all
  std::vector<Waits> by_project;
  // How long each project had a job waiting that its free nominal quota had room for.
  std::vector<absl::Duration> below_guarantee;
  // Jain's index of held slots over nominal quota, of the projects with waiting jobs: 1 when all have the same part of
  // their quota, 1/n when one of n has all. The mean over the time in which two or more wait.
  double jain = 0;
  uint64_t preemptions = 0, not_completed = 0;
};

// Not thread-safe. Times are since the month began, and do not go back.
class Tally {
 public:
  explicit Tally(const Month* month);  // outlives it

  void Submitted(size_t job, absl::Duration at);
  void Started(size_t job, absl::Duration at);    // its slots are held from now on
  void Preempted(size_t job, absl::Duration at);  // its slots are free, and it waits again
  void Ended(size_t job, absl::Duration at, bool completed);
  uint64_t held() const { return held_; }
  MonthFigures Conclude(std::string policy);

 private:
  struct Job {
    absl::Duration since, waited;
    bool holds = false, ended = false;
  };
  struct Project {
    uint64_t held = 0;
    std::multiset<uint32_t> waiting;  // ranks
    absl::Duration below;
  };
  void Advance(absl::Duration to);
  void Release(size_t job, absl::Duration at);
  Waits WaitsOf(const std::string& of, std::vector<absl::Duration> waits) const;

  const Month* const month_;
  absl::Duration now_ = absl::ZeroDuration();
  std::vector<Job> jobs_;
  std::vector<Project> projects_;
  uint64_t held_ = 0, preemptions_ = 0, not_completed_ = 0;
  double held_seconds_ = 0, held_in_month_ = 0, jain_seconds_ = 0, contended_seconds_ = 0;
};

// Markdown, for docs/internals/scheduling.md.
std::string TableOf(const Month& month, const std::vector<MonthFigures>& all);

}  // namespace muster::simulate
