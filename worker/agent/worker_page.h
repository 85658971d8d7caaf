// Renders a worker daemon's metrics page for Prometheus. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace muster::agent {

// The daemon at one instant.
struct WorkerView {
  uint64_t ranks_running = 0;  // with running processes
  uint64_t ranks_ended = 0;    // ended, with unacknowledged records or output
  uint64_t ranks_stuck = 0;    // killed, but their processes do not end
  bool connected = false;
  bool foreign_store = false;      // the coordinator has another store than the ranks here
  absl::Duration contact_age;      // since the coordinator's last message, or since the start
  uint64_t log_bytes_dropped = 0;  // output lost before the coordinator acknowledged it
};

// `node`: with its slots.
std::string WorkerPage(const WorkerView& view, const Node& node);

}  // namespace muster::agent
