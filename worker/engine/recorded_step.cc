#include "worker/engine/recorded_step.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "strategies/compression.h"
#include "worker/engine/optimizer.h"

namespace muster::engine {

namespace {

// Through pinned memory, so that the host does not wait.
void CopyTo(const at::Tensor& fixed, const at::Tensor& host) {
  if (fixed.is_cpu()) {
    fixed.copy_(host);
    return;
  }
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  pinned.copy_(host);
  fixed.copy_(pinned, /*non_blocking=*/true);
}

}  // namespace

StepInputs::StepInputs(const Batch& batch, int64_t rows, at::Device device, std::vector<units::Context>& contexts)
    : shape(ShapeOf(batch)),
      now(at::zeros({2}, at::TensorOptions(at::kDouble).device(device))),
      dropout_step(at::zeros({1}, at::TensorOptions(at::kLong).device(device))),
      rows_(rows) {
  for (units::Context& context : contexts) {
    context.dropout.step_on_device = dropout_step;
    units::NamedTensors fixed;
    for (const auto& [name, tensor] : context.batch) fixed.Set(name, tensor.clone());
    context.batch = std::move(fixed);
  }
  contexts_ = contexts;
}

void StepInputs::Write(const Batch& batch, uint64_t step, double learning_rate) {
  now.select(0, 0).fill_(static_cast<double>(step));
  now.select(0, 1).fill_(learning_rate);
  dropout_step.fill_(static_cast<int64_t>(step));
  int64_t first = 0;
  for (const units::Context& context : contexts_) {
    if (context.samples == 0) continue;
    for (const auto& [name, fixed] : context.batch) {
      CopyTo(fixed, batch.tensors[name].narrow(0, first, context.samples));
    }
    first += rows_;
  }
}

absl::Status CheckRecorded(const Config& config) {
  const auto refuse = [](const std::string& why) {
    return absl::UnimplementedError(absl::StrCat("the step cannot be recorded: ", why));
  };
  const Train& train = config.train;
  if (train.offload().optimizer() || config.schedule.host_input_slots > 0) {
    return refuse("offload copies by the host, which waits for the device");
  }
  if (!config.decide_on_device && !config.streams && !config.cuda) return refuse("the host decides about the update");
  if (strategies::Compresses(train.communication())) return refuse("compressed sums depend on the step");
  if (config.plugin != nullptr) return refuse("a custom model's modules may read the device from the host");
  if (!TakesRateFromDevice(train.optimizer())) {
    return refuse("this optimizer computes with the learning rate on the host; adamw and sgd do not");
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
