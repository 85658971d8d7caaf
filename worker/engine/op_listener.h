// Where the engine says what it is at, as it comes to it: for a page that others read (worker/rundir/progress.h).
//
// Calls cost the step: an implementation stores a number or two. All come from the engine's thread.
#pragma once

#include <cstdint>

#include "strategies/schedule/schedule.h"

namespace muster::engine {

class OpListener {
 public:
  virtual ~OpListener() = default;
  // The host has come to op `index` of the training schedule, and all before it are done, as far as the host sees: on a
  // GPU collectives and compute may be under way still.
  virtual void Begin(int32_t index, OpKind kind) = 0;
  // It waits for an earlier op, which has begun and not ended.
  virtual void WaitFor(int32_t earlier, OpKind kind) = 0;
  // It waits no more, and runs the op that it had come to.
  virtual void EndWait(int32_t index, OpKind kind) = 0;
  // The last op of the step is done. Also when the step failed.
  virtual void EndStep() = 0;
};

}  // namespace muster::engine
