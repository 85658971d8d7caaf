// Sums of gradients and scalars over ranks: begun when the schedule says so, waited for where it says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "worker/engine/arena.h"
#include "worker/engine/engine.h"
#include "worker/engine/in_flight.h"
#include "worker/engine/recorder.h"

namespace muster::engine {

// Of one thread. All that it is given outlives it.
class Reductions {
 public:
  Reductions(const Config* config, const ArenaLayout* layout, Recorder* recorder)
      : config_(config), layout_(layout), recorder_(recorder) {}

  // The gradients' arena. Where they travel in another dtype, a buffer is made for that.
  void SetGradients(const at::Tensor& gradients);
  void BeginStep() { waited_ = {}; }

  // Op `index` of the schedule, called `name`: a kReduce, or the sum of `scalars`.
  void Begin(int32_t index, const std::string& name);
  void BeginScalars(int32_t index, const std::string& name, const at::Tensor& scalars);
  // Until what the op waits for is done. Unavailable: as a Work's.
  absl::Status WaitFor(const Op& op);
  // After an error.
  void Abandon() { in_flight_.Abandon(); }

  double waited_seconds() const { return waited_.count(); }

 private:
  void Issue(int32_t index, const std::string& name, const at::Tensor& values, std::function<void()> then);

  const Config* const config_;
  const ArenaLayout* const layout_;
  Recorder* const recorder_;
  at::Tensor gradients_;
  at::Tensor narrow_;  // the gradients in the dtype in which they travel, where that is not theirs
  InFlight in_flight_;
  std::chrono::duration<double> waited_{};  // in this step
};

}  // namespace muster::engine
