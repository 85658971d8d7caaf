// Issues a step's collectives and waits for them where the schedule says.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "strategies/schedule/schedule.h"
#include "worker/engine/engine.h"
#include "worker/engine/pending_collectives.h"
#include "worker/engine/recorder.h"
#include "worker/engine/storage.h"

namespace muster::engine {

// Not thread-safe. Its arguments outlive it.
class Exchange {
 public:
  Exchange(const Config* config, Recorder* recorder) : config_(config), recorder_(recorder) {}

  void BeginStep() { waited_ = {}; }
  // Each issues op `index` of `schedule`, which outlives the step.
  void Gather(const Schedule& schedule, int32_t index, Storage& storage);
  void Reduce(const Schedule& schedule, int32_t index, Storage& storage);
  void AllReduce(const Schedule& schedule, int32_t index, Storage& storage);
  void ReduceScalars(const Schedule& schedule, int32_t index, const at::Tensor& scalars);
  // Waits for the ops that op `index` depends on. `progress` (may be null) receives each wait. Unavailable: a
  // collective failed; the message names the awaited op.
  absl::Status WaitFor(const Schedule& schedule, int32_t index, OpListener* progress);
  // The norm over all ranks of the op's group: the root of the sum of squares. Without a group, `norm`. Blocks.
  absl::StatusOr<at::Tensor> GlobalNorm(const Op& op, const at::Tensor& norm);
  // After an error.
  void Abandon() { pending_.Abandon(); }

  double waited_seconds() const { return waited_.count(); }

 private:
  void Issue(const Op& op, int32_t index, std::unique_ptr<collectives::Work> work, std::function<void()> then);
  collectives::Group& GroupOf(const Op& op) const { return *config_->groups[op.group]; }

  const Config* const config_;
  Recorder* const recorder_;
  PendingCollectives pending_;
  std::chrono::duration<double> waited_{};  // in this step
};

}  // namespace muster::engine
