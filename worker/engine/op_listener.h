// Receives each op that the engine starts, for the progress page (worker/rundir/progress.h).
//
// Calls are on the step's critical path, so an implementation only stores a number or two. All come from the engine's
// thread.
#pragma once

#include <cstdint>

#include "strategies/schedule/schedule.h"

namespace muster::engine {

class OpListener {
 public:
  virtual ~OpListener() = default;
  // The host has reached op `index` of the training schedule and has issued all earlier ops; on a GPU those may still
  // run.
  virtual void Begin(int32_t index, OpKind kind) = 0;
  // The host waits for an earlier op that has not finished; on a GPU, at the end of the step, for the earliest such op.
  virtual void WaitFor(int32_t earlier, OpKind kind) = 0;
  // The wait is over; the host runs the op that it had reached.
  virtual void EndWait(int32_t index, OpKind kind) = 0;
  // The op that runs waits for what its unit exchanges with other ranks inside its pass (Exchanges, TensorExchanges):
  // each time that it begins to, with whichever ranks. On a GPU the host issues that and goes on.
  virtual void Exchange() {}
  // The last op of the step is done. Also when the step failed.
  virtual void EndStep() = 0;
};

}  // namespace muster::engine
