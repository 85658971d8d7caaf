// A schedule: what one rank does in one training step, as data. Strategies emit it, the checker proves it, the engine
// executes it. Plain values, no thread safety needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "proto/inventory.pb.h"
#include "strategies/schedule/mesh.h"
#include "strategies/schedule/ops.h"

namespace muster {

// Few ops wait for more: a step may have millions of them.
using Waits = absl::InlinedVector<int32_t, 4>;

// Large schedules have millions, so the small fields lie side by side.
struct Op {
  OpKind kind;
  Stream stream = Stream::kCompute;
  bool even = false;  // each of its units is cut into equal ranges: an all-gather or a reduce-scatter, which need not
                      // name an owner for each range
  int32_t unit = -1;  // index in the inventory; -1: all
  int32_t unit_end = -1;  // where a range of units is meant
  int32_t microbatch = -1;
  int32_t group = -1;  // process group, an index of Schedule::groups; -1: none
  int32_t slot = -1;   // buffer of the pool, -1: the unit's own storage
  Waits waits;         // indices of earlier ops of this schedule, which end before it begins
  friend bool operator==(const Op&, const Op&) = default;
};

// The groups, by Op::group, over which a chunk (Inventory.chunks) receives and sends; -1: it begins or ends the model,
// or what it reads or hands on stays on this stage.
struct ChunkEdges {
  int32_t receive = -1, send = -1;                    // activations
  int32_t receive_gradient = -1, send_gradient = -1;  // their gradients
  friend bool operator==(const ChunkEdges&, const ChunkEdges&) = default;
};

// The groups over which a tied tensor goes to the unit that borrows it, and its gradient to the owner.
struct TiedEdges {
  int32_t parameters = -1, gradient = -1;
  friend bool operator==(const TiedEdges&, const TiedEdges&) = default;
};

// A unit always uses the same slot for its gathers, and likewise one for its gradients and two for its inputs, so that
// addresses repeat; a slot is as large as the largest that is put there.
struct Schedule {
  int32_t microbatches = 1;
  int32_t slots = 0;           // for gathered parameters
  int32_t gradient_slots = 0;  // for gradients that wait for their reduction
  // For inputs of recomputed units: on the device, to which they return, and in host memory.
  int32_t input_slots = 0, host_input_slots = 0;
  int32_t activation_slots = 0;  // for activations and gradients that come from other stages of a pipeline
  bool two_exchanges = false;    // a sum over replicas takes two: each kAllReduce has its kFinishSum
  std::vector<GroupSpec> groups = CommonGroups();  // by Op::group; then a stage's edges, then LevelGroups
  std::vector<ChunkEdges> edges = {};              // by chunk of the inventory; empty: the whole model is here
  std::vector<TiedEdges> tied = {};                // by tied tensor of the inventory (Inventory.tied)
  std::vector<Op> ops;
};

// How many outputs a stage of a pipeline may be sending over an edge at a time: the pass that makes one more waits
// for the oldest of them.
inline constexpr size_t kOutputsInFlight = 2;

bool UsesGroup(const Schedule& schedule, int32_t group);
// Of the schedule's group of that number; kNoAxis: there is none.
Axes AxesOf(const Schedule& schedule, int32_t group);

// "compute"
const char* Name(Stream stream);
// "Forward h.0 m1", "Gather h.0..h.3". The groups that every schedule lists by their names.
std::string Print(const Op& op, const Inventory& inventory);
// The same with the units' names alone.
std::string Print(const Op& op, const std::vector<std::string>& units);
// One op a line.
std::string Print(const Schedule& schedule, const Inventory& inventory);

// SHA-256, hex, of the schedule: equal for equal schedules on every machine and build with the same order of fields.
std::string Digest(const Schedule& schedule);

}  // namespace muster
