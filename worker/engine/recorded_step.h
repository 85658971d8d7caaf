// What lets one step run again as later steps, by its tasks or as a graph (stream_driver.h) of what they issued:
// everything that changes from step to step lies in fixed memory, which is written before the step, and no task reads
// it from the host.
//
// What changes, and where a task finds it:
//   the number of the step, the learning rate    StepInputs::now
//   the step of dropout                          StepInputs::dropout_step
//   inputs and targets of each microbatch        StepInputs::contexts
//   the loss, votes, the norm                    StepTensors, zeroed and written before the step
//   loss scale, skipped updates, halting         the engine's update_ (update_decision.h), in place
//   running statistics before the step           the engine's kept_buffers_, copied before the step
//   bias corrections, clipping, skipping         computed by the tasks from the above
// What a task does take from the host is in StepShape: the divisor of the loss, the number of samples, dropout's first
// sample. Steps of another shape than the graph's run by themselves, op by op, as do evaluations; another
// implementation of attention needs another recording. All ranks have the same sequence of shapes, so they capture and
// launch together.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "worker/engine/batch.h"
#include "worker/engine/engine.h"
#include "worker/units/unit.h"

namespace muster::engine {

struct StepShape {
  uint64_t samples = 0, global_samples = 0, first_sample = 0;
  bool operator==(const StepShape&) const = default;
};
inline StepShape ShapeOf(const Batch& batch) { return {batch.samples, batch.global_samples, batch.first_sample}; }

class StepInputs {
 public:
  // Fixed memory in place of the tensors of `contexts`, one per microbatch of `rows` samples, which read it from then
  // on.
  StepInputs(const Batch& batch, int64_t rows, at::Device device, std::vector<units::Context>& contexts);

  // Before each step, the first one included. REQUIRES: the shape is that of the batch of the constructor.
  void Write(const Batch& batch, uint64_t step, double learning_rate);

  const StepShape shape;
  const at::Tensor now;           // UpdateDecision::now
  const at::Tensor dropout_step;  // int64 [1]

 private:
  const int64_t rows_;
  std::vector<units::Context> contexts_;
};

// Unimplemented: what this job computes cannot be recorded; the message says why.
absl::Status CheckRecorded(const Config& config);

}  // namespace muster::engine
