// A schedule: what one rank does in one training step, as data. Strategies emit it, the checker proves it, the engine
// executes it. Plain values, no thread safety needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/inventory.pb.h"

namespace muster {

enum class OpKind : uint8_t {
  kGather,     // unit's parameters become resident in `slot`
  kForward,    // unit, microbatch
  kBackward,   // unit, microbatch
  kRecompute,  // unit, microbatch: forward again, to have Saved back
  kRelease,    // unit's parameters are no longer resident
  kReduce,     // gradients of units [unit, unit_end) to their owners
  kSend,       // activations or their gradients of (unit, microbatch) to `peer`
  kRecv,
  kOffload,  // unit's owned state to host memory
  kFetch,
  kReduceScalars,  // loss sum and votes of the step over all ranks
  kClipGradients,  // global norm over owned extents, then the factor for the optimizer
  kOptimizerStep,  // over owned extents
  kSnapshot,       // owned state to host memory, for a checkpoint
};

// Process groups by number. One so far: all ranks of the generation.
inline constexpr int32_t kWorldGroup = 0;

enum class Stream : uint8_t { kCompute, kGather, kReduce, kTransfer };

struct Op {
  OpKind kind;
  int32_t unit = -1;      // index in the inventory; -1: all
  int32_t unit_end = -1;  // kReduce
  int32_t microbatch = -1;
  Stream stream = Stream::kCompute;
  int32_t group = -1;          // process group, -1: none
  int32_t slot = -1;           // gather buffer, -1: the unit's own storage
  int32_t peer = -1;           // kSend, kRecv
  std::vector<int32_t> waits;  // indices of earlier ops of this schedule; ops of one stream wait for each other anyway
};

struct Schedule {
  int32_t microbatches = 1;
  int32_t slots = 0;  // gather buffers that the pool must have
  std::vector<Op> ops;
};

// "Forward h.0 m1".
std::string Print(const Op& op, const Inventory& inventory);
// One op a line.
std::string Print(const Schedule& schedule, const Inventory& inventory);

// SHA-256, hex, of the schedule: equal for equal schedules on every machine and build that orders fields alike.
std::string Digest(const Schedule& schedule);

}  // namespace muster
