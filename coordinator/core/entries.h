// A job and a node as a Core holds them: the stored record with its state machine, and state that is only in memory.
// Private to coordinator/core.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/core/machines.h"
#include "coordinator/core/planner.h"
#include "coordinator/core/step_times.h"
#include "coordinator/core/time_tracker.h"
#include "coordinator/scheduler/queue.h"
#include "proto/worker.pb.h"

namespace muster::core {

struct JobEntry {
  JobMachine machine;
  std::map<uint64_t, GenerationMachine> generations;
  // In memory only; timers restart after a recovery.
  std::optional<SteadyTime> not_before;      // end of its backoff
  std::optional<SteadyTime> start_deadline;  // of the newest generation
  std::optional<SteadyTime> stop_overdue;    // of the newest generation
  uint64_t highest_step = 0;                 // reported in the newest generation
  std::set<uint32_t> arrived;                // ranks that called at the newest generation's rendezvous
  PlannedPtr plan;                           // of the newest generation; derived from the spec and the slots
  // Slots that the planner refused because they are too small; newest last, bounded.
  struct Refused {
    std::string slots;  // their signature
    Unfit unfit;
  };
  std::deque<Refused> refused;
  uint64_t slot_bytes = 0;  // the least slot memory that fits it, if known
  TimeTracker time;         // the record's `time_breakdown` dates from its last change
  SteadyTime time_kept;     // when the record's time_breakdown was updated
  StepTimes step_times;     // of the newest generation
  struct RankProgress {
    uint64_t step = 0, issued = 0, completed = 0;
    absl::Duration stalled;  // how long these three have not changed
    // Its process gets no CPU time. It may have issued an op that its peers now wait for, while they have not issued as
    // many.
    bool frozen = false;
    // Index of the current op.
    uint64_t op() const { return !frozen ? completed : issued == 0 ? 0 : issued - 1; }
  };
  std::map<uint32_t, RankProgress> progress;  // by rank, from the last report
  SteadyTime peers_unblocked_at;          // when a frozen or unknown rank resumed; its peers' stalls count from here
  std::optional<SteadyTime> whole_until;  // until then it starts only with all its ranks
  std::optional<SteadyTime> grow_at;      // when it runs on fewer ranks: the next check for free slots
  bool found_room = false;                // the last check found slots
  StepTraceRequest trace;                 // of the newest generation; id 0: none
  std::set<uint32_t> traced;              // ranks that `trace` is for
  uint64_t checkpoint_request = 0;        // of the newest generation; 0: none

  const Job& record() const { return machine.record(); }
  GenerationMachine* newest() { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  const GenerationMachine* newest() const { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  scheduler::Claim claim() const { return {JobId(record().id()), record().spec().priority(), record().sequence()}; }
};

struct NodeEntry {
  NodeMachine machine;
  std::optional<SteadyTime> lost_at = {};       // of an AWAY node
  std::optional<SteadyTime> spared_until = {};  // it would be lost, but many nodes are away at once
  uint64_t revision = 1;                        // of its desired state
  // In memory only: the boot id of the last Hello. The record's boot_id is that of the last full report.
  std::string boot = {};
  // The full report of this stream was processed. Until then no desired state is sent and no rank is placed here: a
  // rank starts only once, so the core must first know which ranks the node has lost.
  bool reported = false;

  const Node& record() const { return machine.record(); }
};

}  // namespace muster::core
