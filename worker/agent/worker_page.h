// The page that a worker daemon shows to Prometheus. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace muster::agent {

// The daemon at one instant.
struct WorkerView {
  uint64_t ranks_running = 0;  // their processes live
  uint64_t ranks_ended = 0;    // of which the coordinator has not taken everything yet
  bool connected = false;
  absl::Duration contact_age;      // since the coordinator's last word, or since the start
  uint64_t log_bytes_dropped = 0;  // of output that was gone before the coordinator had it
};

// `node`: with its slots.
std::string WorkerPage(const WorkerView& view, const Node& node);

}  // namespace muster::agent
