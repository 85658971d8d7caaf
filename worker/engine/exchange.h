// What a rank exchanges with others in a step: begun when the schedule says so, waited for where it says so.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "strategies/schedule/schedule.h"
#include "worker/engine/engine.h"
#include "worker/engine/pending_collectives.h"
#include "worker/engine/recorder.h"
#include "worker/engine/storage.h"

namespace muster::engine {

// Of one thread. All that it is given outlives it.
class Exchange {
 public:
  Exchange(const Config* config, Recorder* recorder) : config_(config), recorder_(recorder) {}

  void BeginStep() { waited_ = {}; }
  // Op `index` of `schedule`, called `name`: kGather, kReduce or kAllReduce.
  void Begin(const Schedule& schedule, int32_t index, const std::string& name, Storage& storage);
  // kReduceScalars.
  void BeginScalars(const Schedule& schedule, int32_t index, const std::string& name, const at::Tensor& scalars);
  // Until what op `index` waits for is done. `progress` is told of each wait; null: nobody is. Unavailable: as a
  // Work's; the message names the op that was waited for.
  absl::Status WaitFor(const Schedule& schedule, int32_t index, OpListener* progress);
  // The square root of the sum of squares over the group of op, which is waited for; `norm` where it has none.
  absl::StatusOr<at::Tensor> GlobalNorm(const Op& op, const at::Tensor& norm);
  // After an error.
  void Abandon() { pending_.Abandon(); }

  double waited_seconds() const { return waited_.count(); }

 private:
  void Issue(const Op& op, int32_t index, const std::string& name, std::unique_ptr<collectives::Work> work,
             std::function<void()> then);
  collectives::Group& GroupOf(const Op& op) const { return *config_->groups[op.group]; }

  const Config* const config_;
  Recorder* const recorder_;
  PendingCollectives pending_;
  std::chrono::duration<double> waited_{};  // in this step
};

}  // namespace muster::engine
