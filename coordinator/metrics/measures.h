// The coordinator's Prometheus metrics: counters and histograms, and the /metrics page.
//
// Measures is thread-safe; CoordinatorPage is pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/metrics/exposition.h"
#include "common/mutex.h"
#include "proto/job.pb.h"

namespace muster::metrics {

class Measures {
 public:
  Measures();

  // Durations of an iteration of the event loop, including its commit, and of the commit alone.
  void ObserveTurn(absl::Duration took) { turn_.Observe(absl::ToDoubleSeconds(took)); }
  void ObserveCommit(absl::Duration took) { commit_.Observe(absl::ToDoubleSeconds(took)); }
  // Counts a state event that is on disk. The time from "job.queued" to "generation.starting" is the queue wait.
  // `reason`: for "generation.ended", else unset.
  void ObserveEvent(const StateEvent& event, EndReason reason);
  // Counts a finished call. `method`: "/muster.v1.Jobs/Submit", `code`: "OK", "NOT_FOUND".
  void CountCall(const std::string& method, const std::string& code);

  // Metrics and log chunks that were dropped because the disk is full.
  void CountDropped(uint64_t items) {
    const MutexLock lock(mutex_);
    dropped_ += items;
  }

  void WriteTo(Exposition& page) const;

 private:
  Histogram turn_;
  Histogram commit_;
  Histogram queue_wait_;

  mutable Mutex mutex_;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generations_started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<EndReason, uint64_t> generations_ended_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, uint64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Time> queued_ ABSL_GUARDED_BY(mutex_);  // queued jobs, and since when
};

// A tracking server, and what was sent to it since the coordinator started.
struct TrackingServer {
  std::string name;
  bool up = true;
  uint64_t values = 0, refused = 0, failures = 0;
};

// The coordinator's state at one instant.
struct Snapshot {
  std::vector<Job> jobs;  // all that have not ended
  std::map<JobState, uint64_t> job_states;
  std::vector<Node> nodes;
  std::map<std::string, MetricPoint> last;  // by job: the newest value of each series
  size_t watch_streams = 0;
  std::map<std::string, size_t> connections;  // by whether a call of theirs was admitted
  uint64_t refused_connections = 0;           // so far
  bool refuses_jobs = false;                  // new ones, for lack of room on the store's disk
  std::vector<TrackingServer> tracking;
};

// The /metrics page. A job has series only while it runs.
std::string CoordinatorPage(const Snapshot& snapshot, const Measures& measures);

}  // namespace muster::metrics
