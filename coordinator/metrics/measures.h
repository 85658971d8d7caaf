// What a coordinator counts for Prometheus, and the page of it.
//
// Measures is thread-safe; CoordinatorPage is pure.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "common/metrics/exposition.h"
#include "proto/job.pb.h"

namespace muster::metrics {

class Measures {
 public:
  Measures();

  // A turn of the event loop, its commit included; a commit of the store alone.
  void ObserveTurn(absl::Duration took) { turn_.Observe(absl::ToDoubleSeconds(took)); }
  void ObserveCommit(absl::Duration took) { commit_.Observe(absl::ToDoubleSeconds(took)); }
  // A state event that is on disk: "job.queued" begins a wait that "generation.starting" ends. `reason`: of
  // "generation.ended", else unset.
  void ObserveEvent(const StateEvent& event, EndReason reason);
  // A call that has ended. `method`: "/muster.v1.Jobs/Submit", `code`: "OK", "NOT_FOUND".
  void CountCall(const std::string& method, const std::string& code);

  void WriteTo(Exposition& page) const;

 private:
  Histogram turn_;
  Histogram commit_;
  Histogram queue_wait_;

  mutable std::mutex mutex_;
  uint64_t generations_started_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<EndReason, uint64_t> generations_ended_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::string, std::string>, uint64_t> calls_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, absl::Time> queued_ ABSL_GUARDED_BY(mutex_);  // jobs that wait, since
};

// The coordinator at one instant.
struct Snapshot {
  std::vector<Job> jobs;  // all
  std::vector<Node> nodes;
  std::map<std::string, MetricPoint> last;  // by job: newest known of each series
  size_t watch_streams = 0;
};

// Series of a job are there while it runs.
std::string CoordinatorPage(const Snapshot& snapshot, const Measures& measures);

}  // namespace muster::metrics
