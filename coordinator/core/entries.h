// A job and a node as a Core holds them: the record with its state machine, and what is kept in memory only. Private to
// coordinator/core.
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
  // In memory only; timers start anew after a recovery.
  std::optional<SteadyTime> not_before;      // back-off
  std::optional<SteadyTime> start_deadline;  // of the newest generation
  std::optional<SteadyTime> stop_overdue;    // of the newest generation
  uint64_t highest_step = 0;                 // reported in the newest generation
  std::set<uint32_t> arrived;                // ranks of the newest generation that called at its rendezvous
  std::optional<Planned> plan;               // of the newest generation; follows from the spec and the slots
  // Slots that are too small for it, as far as was tried; newest last, bounded.
  struct Refused {
    std::string slots;  // their signature
    Unfit unfit;
  };
  std::deque<Refused> refused;
  uint64_t slot_bytes = 0;  // no slot of less memory suits it, as far as is known
  TimeTracker time;         // the record's `time_breakdown` is that of its last change
  SteadyTime time_kept;     // when that was
  StepTimes step_times;     // of the newest generation
  struct RankProgress {
    uint64_t step = 0, issued = 0, completed = 0;
    absl::Duration still;  // so long nothing of these has changed
    // Its process does not run. Its peers may wait for what it had begun to send: it may have issued more than they
    // have.
    bool frozen = false;
    // Index of the op that it is at.
    uint64_t op() const { return !frozen ? completed : issued == 0 ? 0 : issued - 1; }
  };
  std::map<uint32_t, RankProgress> progress;  // of its ranks, as they were last told of
  SteadyTime went_on;                         // when one of them, as far as is known, ceased to keep the others waiting
  std::optional<SteadyTime> whole_until;      // before it, it is not started with fewer than all its ranks
  std::optional<SteadyTime> grow_at;          // when it runs on fewer: look for slots for more
  bool room_seen = false;                     // the last look found some
  StepTraceRequest trace;                     // of the newest generation; id 0: none
  std::set<uint32_t> traced;                  // ranks that it is for
  uint64_t checkpoint_request = 0;            // of the newest generation; 0: nobody asks

  const Job& record() const { return machine.record(); }
  GenerationMachine* newest() { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  const GenerationMachine* newest() const { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  scheduler::Claim claim() const { return {JobId(record().id()), record().spec().priority(), record().sequence()}; }
};

struct NodeEntry {
  NodeMachine machine;
  std::optional<SteadyTime> lost_at = {};       // of an AWAY node
  std::optional<SteadyTime> spared_until = {};  // it would be lost, but too many are away at once
  uint64_t revision = 1;                        // of its desired state
  // In memory only. What its daemon said at its last hello; the record's boot_id is that of the last full report.
  std::string boot = {};
  // The full report of its stream was judged. Until then nothing is desired of it and nothing placed there: what it has
  // lost must be known first, since a rank starts once.
  bool reported = false;

  const Node& record() const { return machine.record(); }
};

}  // namespace muster::core
