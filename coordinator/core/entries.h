// A job and a node as a Core holds them: the stored record with its state machine, and state that is only in memory.
// Private to coordinator/core.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/core/machines.h"
#include "coordinator/core/step_times.h"
#include "coordinator/core/time_tracker.h"
#include "proto/worker.pb.h"

namespace muster::core {

// What is only in memory of a job's newest generation, from its start until it has ended. After a restart of the
// coordinator it begins anew: timers restart, and what ranks reported is unknown until they report again.
struct RunningGeneration {
  SteadyTime held_since;  // the record's held_seconds has the time up to here
  bool time_limit_warned = false;
  SteadyTime started;   // its ranks run since then; before, it was placed
  SteadyTime saved_at;  // its last checkpoint, or `started`
  std::optional<SteadyTime> start_deadline;
  std::optional<SteadyTime> stop_overdue;
  uint32_t overdue_stops = 0;             // how often it was reported
  PlannedPtr plan;                        // derived from the spec and the slots
  std::set<uint32_t> arrived;             // ranks that called at its rendezvous
  uint64_t highest_step = 0;              // that any of its ranks reported
  std::optional<SteadyTime> reported_at;  // when `highest_step` rose
  std::optional<SteadyTime> idle_at;      // the last event about an idle rank
  uint32_t checkpoint_events = 0;         // of checkpoints that its script reported
  SteadyTime checkpoint_at;               // the last of them
  StepTimes step_times;
  struct RankProgress {
    uint64_t step = 0, issued = 0, completed = 0;
    absl::Duration stalled;  // how long these three, and `exchanges`, have not changed
    // Its process gets no CPU time. It may have issued an op that its peers now wait for, while they have not issued as
    // many.
    bool frozen = false;
    uint64_t shown_op = 0, shown_step = 0;  // ObservedRank.op, .op_step
    // Begun inside the op that was issued last; none: its worker does not count them, or it does not stall.
    std::optional<uint64_t> exchanges;
    // Index of the current op of a rank that stalls.
    uint64_t op() const { return !frozen ? completed : issued == 0 ? 0 : issued - 1; }
    // Whether `exchanges` is about that op. Not if it waits for an earlier one.
    bool exchanges_in_op() const { return exchanges.has_value() && issued == op() + 1; }
  };
  std::map<uint32_t, RankProgress> progress;  // by rank, from the last report
  SteadyTime peers_unblocked_at;      // when a frozen or unknown rank resumed; its peers' stalls count from here
  std::optional<SteadyTime> grow_at;  // of one on fewer ranks: the next check for free slots
  bool found_room = false;            // the last check found slots
  StepTraceRequest trace;             // id 0: none
  std::set<uint32_t> traced;          // ranks that `trace` is for
  uint64_t checkpoint_request = 0;    // 0: none
};

struct JobEntry {
  JobMachine machine;
  std::map<uint64_t, GenerationMachine> generations;
  // Set exactly while the newest generation has not ended. All that follows is in memory only.
  std::optional<RunningGeneration> running;
  TimeTracker time;                          // the record's `time_breakdown` dates from its last change
  std::optional<SteadyTime> store_times_at;  // unless it changes before; none: only then
  // Of a job that waits in the queue.
  std::optional<SteadyTime> not_before;   // end of its backoff
  std::optional<SteadyTime> whole_until;  // until then it starts only with all its ranks
  // Slots that the planner refused because they are too small; newest last, bounded.
  struct Refused {
    std::string slots;  // their signature
    Unfit unfit;
  };
  std::deque<Refused> refused;
  uint64_t slot_bytes = 0;      // the least slot memory that fits it, if known
  uint64_t smallest_bytes = 0;  // Unfit's, of all its ranks

  const Job& record() const { return machine.record(); }
  JobId id() const { return JobId(record().id()); }
  // Whether the node has refused it.
  bool Avoids(const NodeId& node) const {
    const auto& refusals = record().refused_by();
    return std::any_of(refusals.begin(), refusals.end(),
                       [&](const NodeRefusal& refusal) { return refusal.node() == node.value(); });
  }
  GenerationMachine* newest() { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  const GenerationMachine* newest() const { return generations.empty() ? nullptr : &generations.rbegin()->second; }
  // The least number of ranks that it may run with.
  uint32_t least_ranks() const {
    const Resources& resources = record().spec().resources();
    return resources.has_min_ranks() ? std::min(resources.min_ranks(), resources.ranks()) : resources.ranks();
  }
  // Now, while it is queued.
  uint32_t needed_ranks() const {
    return whole_until.has_value() ? record().spec().resources().ranks() : least_ranks();
  }
  // Stages of a pipeline: it runs on a multiple of them.
  uint32_t stages() const { return StagesOf(record().spec()); }
  // It runs on a multiple of so many.
  uint32_t least_group() const { return LeastGroupOf(record().spec()); }
  // REQUIRES: it has a generation.
  bool RunsOnFewer() const {
    return static_cast<uint32_t>(newest()->record().ranks_size()) < record().spec().resources().ranks();
  }
};

// What a killed rank still holds a slot with.
struct StuckSlot {
  RankId rank;
  std::string processes;
  friend bool operator==(const StuckSlot&, const StuckSlot&) = default;
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
  std::map<std::string, SteadyTime> links_measured = {};  // by the other node
  std::vector<SteadyTime> fault_times = {};               // of the record's faults, in their order
  std::map<uint32_t, StuckSlot> stuck = {};  // by slot; in memory only, since a node takes no ranks before its report
  std::optional<SteadyTime> forget_at = {};  // of a LOST node

  const Node& record() const { return machine.record(); }
};

// Which of a replica's contributions to an exchange. 0: unknown, since a worker is older.
struct Contribution {
  uint64_t generation = 0;
  uint64_t step = 0;  // after which it was made
  bool operator==(const Contribution&) const = default;
};

// The exchange of a fragment that is not decided yet. After a restart of the coordinator ranks ask again.
struct OpenExchange {
  struct Offer {
    uint64_t generation = 0;
    uint64_t step = 0;  // as Contribution
    SteadyTime since;   // when its first rank offered
    // By rank: replicas whose contributions it has, and which.
    std::map<uint32_t, std::map<uint32_t, Contribution>> holds;
  };
  struct Place {
    uint64_t generation = 0;
    uint64_t exchange = 0;  // that the rank has applied
    std::string address;
    bool operator==(const Place&) const = default;
  };
  std::map<uint32_t, Offer> offers;                      // by replica
  std::map<uint32_t, std::map<uint32_t, Place>> places;  // by replica and rank
  std::set<uint32_t> behind;                             // replicas whose decision was to catch up, and that have not
  std::set<uint32_t> excused;  // that have, since the last exchange, and so are not waited for
  std::optional<SteadyTime> first_offer, first_sourceless;
};

struct RunEntry {
  explicit RunEntry(SyncRun of) : record(std::move(of)), open(static_cast<size_t>(record.fragments_size())) {}
  SyncRun record;
  std::vector<OpenExchange> open;                                // by fragment
  std::map<uint32_t, std::pair<uint64_t, std::string>> layouts;  // by replica: its generation's
};

}  // namespace muster::core
