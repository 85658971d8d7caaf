// Copies jobs to tracking servers: one thread for each destination, which follows the coordinator's stream of events
// and metrics from a place on disk. The stream is the queue, so a server that is away costs no memory, and nothing
// waits for it.
//
// A job has one run, which is found by its tags. The place moves on when everything before it is there, so a
// coordinator that is killed, or an answer that is lost, has some points sent twice, of which a server with a database
// keeps one. A request that fails is tried again after a second, then after twice that and so on, up to a minute.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/server/loop.h"
#include "coordinator/tracking/config.h"

namespace muster::tracking {

struct TrackerOptions {
  std::string folder;  // of the places; made if it is missing
  std::vector<Destination> destinations;
  absl::Duration gather = absl::Seconds(2);   // what happens meanwhile is sent together
  absl::Duration refresh = absl::Minutes(1);  // labels and notes, which change without an event, are looked at so often
  absl::Duration first_pause = absl::Seconds(1);
  absl::Duration longest_pause = absl::Minutes(1);
};

// Of one destination, since the start.
struct TrackerCount {
  std::string destination;
  bool up = true;         // the last request was answered
  uint64_t values = 0;    // metric values that the server took
  uint64_t refused = 0;   // values, and sets of parameters or tags, that it will never take
  uint64_t failures = 0;  // requests to repeat
};

class Tracker {
 public:
  // `loop` outlives it. Errors of the folder, and of a place that is there but cannot be read.
  static absl::StatusOr<std::unique_ptr<Tracker>> Start(const TrackerOptions& options, server::Loop* loop);
  ~Tracker();

  std::vector<TrackerCount> Counts() const;

  // Not together with itself. Stops in the middle of a request. What is not sent is sent after the next start.
  // REQUIRES: the loop has not stopped.
  void Stop();

 private:
  class Copier;
  explicit Tracker(std::vector<std::unique_ptr<Copier>> copiers);
  const std::vector<std::unique_ptr<Copier>> copiers_;
  bool stopped_ = false;  // touched by Stop only
};

}  // namespace muster::tracking
