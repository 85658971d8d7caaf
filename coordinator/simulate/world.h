// State shared by the parts of one simulated cluster.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/core.h"
#include "coordinator/simulate/agenda.h"
#include "coordinator/simulate/disk.h"
#include "coordinator/simulate/judge.h"
#include "coordinator/simulate/random.h"

namespace muster::simulate {

class Coordinator;
class Gangs;
class WorkerNode;

// Options, drawn from the seed.
struct Settings {
  core::Options core;
  absl::Duration detection = absl::Seconds(10);
  absl::Duration orphan_grace = absl::Minutes(30);
  uint64_t lost_calls_percent = 10;        // share of lost requests, and of lost replies, of users and trainers
  uint64_t repeated_messages_percent = 2;  // share of worker reports that are repeated
  // No other faults, and then no rank may be restarted.
  bool only_coordinator_fails = false;
};

struct World {
  explicit World(uint64_t seed) : random(seed), judge(agenda.clock()), disk(&judge) {}

  // Called with a line of the trace; empty: no trace.
  void Trace(const std::function<std::string()>& line) const {
    if (trace) trace(line());
  }
  void Count(const std::string& what) { ++counts[what]; }

  Agenda agenda;
  Random random;
  Judge judge;
  Disk disk;
  Settings settings;
  std::function<void(const std::string&)> trace;
  std::map<std::string, uint64_t> counts;
  absl::Duration slow_network = absl::ZeroDuration();  // added to every delay, at most

  // On the nodes' shared disk, by checkpoint.path.
  struct CheckpointFolder {
    JobId owner;                  // empty: not claimed yet
    std::set<std::string> steps;  // complete checkpoints
  };
  std::map<std::string, CheckpointFolder> folders;
  SteadyTime disk_full_until;

  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<Gangs> gangs;
  std::vector<std::unique_ptr<WorkerNode>> nodes;
};

}  // namespace muster::simulate
