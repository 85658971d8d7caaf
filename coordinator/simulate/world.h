// What the parts of one simulated cluster share.
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

// Drawn from the seed.
struct Settings {
  core::Options core;
  absl::Duration detection = absl::Seconds(10);
  absl::Duration orphan_grace = absl::Minutes(30);
  uint64_t lost_calls_percent = 10;        // of requests, and of replies, of users and trainers
  uint64_t repeated_messages_percent = 2;  // of what workers say of their ranks
  // Nothing else fails, and then no rank may be restarted.
  bool only_coordinator_fails = false;
};

struct World {
  explicit World(uint64_t seed) : random(seed), judge(agenda.clock()), disk(&judge) {}

  // Called with a line for people; nothing when nobody listens.
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

  // On the disk that all nodes share: whole checkpoints, by job and folder.
  std::map<JobId, std::set<std::string>> checkpoints;
  SteadyTime disk_full_until;

  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<Gangs> gangs;
  std::vector<std::unique_ptr<WorkerNode>> nodes;
};

}  // namespace muster::simulate
