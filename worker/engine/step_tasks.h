// What each op of a schedule does in this engine: a handler for each kind that it runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "strategies/schedule/schedule.h"
#include "worker/engine/compressed_sums.h"
#include "worker/engine/engine.h"
#include "worker/engine/in_flight_microbatches.h"
#include "worker/engine/queue.h"
#include "worker/engine/storage.h"

namespace muster::engine {

// Of a training step, on the device; all fp64.
struct StepTensors {
  at::Tensor scalars{};  // by StepScalar
  at::Tensor norm{};     // of the gradient, over all ranks
};

class StepTasks {
 public:
  struct Context {  // outlives the tasks
    const Config* config;
    Storage* storage;
    InFlightMicrobatches* microbatches;
    StepTensors* tensors;                   // null: an evaluation, which has no op of OpScope::kStep
    std::function<void(const Op&)> update;  // the optimizer's
    at::Device device = at::kCPU;
    CompressedSums* sums = nullptr;  // null: sums are exact
    uint64_t step = 0;               // steps before this one
  };
  explicit StepTasks(Context context) : context_(std::move(context)) {}

  // Whether there is a handler; CheckConfig refuses a schedule with another op.
  static bool Runs(OpKind kind) { return HandlerOf(kind) != nullptr; }
  // The task keeps references to `op` and to what the context names. REQUIRES: Runs(op.kind).
  Task TaskOf(const Op& op);

 private:
  using Handler = Task (*)(const Context& context, const Op& op);
  static Handler HandlerOf(OpKind kind);
  std::vector<Access> AccessesOf(const Op& op) const;

  const Context context_;
};

}  // namespace muster::engine
