// A schedule: what one rank does in one training step, as data. Strategies emit it, the checker proves it, the engine
// executes it. Plain values, no thread safety needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster {

enum class OpKind : uint8_t {
  kGather,         // from their owners: the parameters of units [unit, unit_end) become resident in `slot`
  kForward,        // unit, microbatch
  kBackward,       // unit, microbatch
  kRecompute,      // unit, microbatch: forward again, to have Saved back
  kRelease,        // the parameters of units [unit, unit_end) are no longer resident
  kOpenGradients,  // a gradient of zeros for units [unit, unit_end), in `slot` of the gradient slots
  kReduce,         // gradients of units [unit, unit_end) to their owners; frees their slot
  kAllReduce,      // gradients that this rank's shard owns of units [unit, unit_end), over its replicas
  kSend,           // activations or their gradients of (unit, microbatch) to `peer`
  kRecv,
  kOffload,  // unit's owned state to host memory
  kFetch,
  kReduceScalars,  // loss sum and votes of the step over all ranks
  kClipGradients,  // global norm over owned extents (a group: summed over it), and the factor where the spec clips
  kOptimizerStep,  // over owned extents
  kSnapshot,       // owned state to host memory, for a checkpoint
};

// Process groups by number: all ranks of the generation; the ranks that together hold one copy of the sharded state;
// the ranks that hold the same shard.
inline constexpr int32_t kWorldGroup = 0, kShardGroup = 1, kReplicaGroup = 2;
inline constexpr int32_t kGroups = 3;

enum class Stream : uint8_t { kCompute, kGather, kReduce, kTransfer };
inline constexpr size_t kStreams = 4;

struct Op {
  OpKind kind;
  int32_t unit = -1;      // index in the inventory; -1: all
  int32_t unit_end = -1;  // where a range of units is meant
  int32_t microbatch = -1;
  Stream stream = Stream::kCompute;
  int32_t group = -1;          // process group, -1: none
  int32_t slot = -1;           // buffer of the pool, -1: the unit's own storage
  int32_t peer = -1;           // kSend, kRecv
  std::vector<int32_t> waits;  // indices of earlier ops of this schedule; ops of one stream wait for each other anyway
};

// A unit always uses the same slot for its gathers, and likewise one for its gradients, so that addresses repeat; a
// slot is as large as the largest unit in it.
struct Schedule {
  int32_t microbatches = 1;
  int32_t slots = 0;           // for gathered parameters
  int32_t gradient_slots = 0;  // for gradients that wait for their reduction
  std::vector<Op> ops;
};

// "compute"
const char* Name(Stream stream);
// "Forward h.0 m1", "Gather h.0..h.3".
std::string Print(const Op& op, const Inventory& inventory);
// One op a line.
std::string Print(const Schedule& schedule, const Inventory& inventory);

// SHA-256, hex, of the schedule: equal for equal schedules on every machine and build with the same order of fields.
std::string Digest(const Schedule& schedule);

}  // namespace muster
