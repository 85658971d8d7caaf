// State shared by the parts of one simulated cluster.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
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
  absl::Duration outage_grace = absl::ZeroDuration();  // of the workers; not above orphan_grace: as that
  bool outbox_shrinks = false;                         // acknowledged records are removed
  uint64_t lost_calls_percent = 10;        // share of lost requests, and of lost replies, of users and trainers
  uint64_t repeated_messages_percent = 2;  // share of worker reports that are repeated
  // No other faults, and then no rank may be restarted.
  bool only_coordinator_fails = false;
  // Faults that only some seeds have.
  uint64_t restores = 0;      // of an older copy of the coordinator's disk
  bool long_outages = false;  // longer than ranks go on without contact
  bool state_disk_fills = false;
  bool real_plans = false;
  bool chained = false;                 // some jobs come after others
  bool placed = false;                  // some jobs say how their ranks lie on nodes
  bool shared = false;                  // two projects with quotas, time limits, and preemption
  bool replicated = false;              // a run with local steps on several replicas
  bool checkpoints_rot = false;         // the newest one is damaged now and then
  bool reserved = false;                // nodes are reserved in windows of time
  bool wall_clock_never_jumps = false;  // it never jumps, whatever the faults are
  absl::Duration longest_wall_jump = absl::InfiniteDuration();
};

// What a replica of a run with local steps has of a fragment (worker/trainer/outer_state.h).
struct Outer {
  uint64_t exchange = 0;
  std::map<uint32_t, uint64_t> content;  // by rank; none: as at the start of the run
};
using Outers = std::vector<Outer>;  // by fragment

struct World {
  explicit World(uint64_t seed) : random(seed), damage(seed ^ 0x2545f491), judge(agenda.clock()), disk(&judge) {}

  // Called with a line of the trace; empty: no trace.
  void Trace(const std::function<std::string()>& line) const {
    if (trace) trace(line());
  }
  void Count(const std::string& what) { ++counts[what]; }
  void JumpWall(absl::Duration by) {
    if (settings.wall_clock_never_jumps) return;
    Count("wall clock jumped");
    agenda.JumpWall(std::clamp(by, -settings.longest_wall_jump, settings.longest_wall_jump));
  }

  Agenda agenda;
  Random random;
  Random damage;  // of checkpoints
  Judge judge;
  Disk disk;
  Settings settings;
  std::function<void(const std::string&)> trace;
  std::map<std::string, uint64_t> counts;
  bool calm = false;                                   // faults are over
  absl::Duration slow_network = absl::ZeroDuration();  // added to every delay, at most

  // On the nodes' shared disk, by checkpoint.path.
  struct CheckpointFolder {
    JobId owner;  // empty: not claimed yet
    // Complete checkpoints by name, each with its step and generation.
    std::map<std::string, std::pair<uint64_t, uint64_t>> steps;
    std::map<std::string, Outers> outers;  // in them, of a replica
    std::set<std::string> damaged;

    bool IsWhole(const std::string& name) const { return steps.contains(name) && !damaged.contains(name); }
  };
  std::map<std::string, CheckpointFolder> folders;
  SteadyTime disk_full_until;

  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<Gangs> gangs;
  std::vector<std::unique_ptr<WorkerNode>> nodes;
};

}  // namespace muster::simulate
