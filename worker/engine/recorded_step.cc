#include "worker/engine/recorded_step.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "worker/engine/optimizer.h"

namespace muster::engine {

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
  const double numbers[] = {static_cast<double>(step), learning_rate};
  now.copy_(at::tensor(at::ArrayRef<double>(numbers), at::kDouble));
  dropout_step.fill_(static_cast<int64_t>(step));
  int64_t first = 0;
  for (const units::Context& context : contexts_) {
    if (context.samples == 0) continue;
    for (const auto& [name, fixed] : context.batch) {
      fixed.copy_(batch.tensors[name].narrow(0, first, context.samples), /*non_blocking=*/true);
    }
    first += rows_;
  }
}

absl::Status CheckRecorded(const Config& config) {
  const auto refuse = [](const std::string& why) {
    return absl::UnimplementedError(absl::StrCat("the step cannot be recorded: ", why));
  };
  const Train& train = config.train;
  if (config.cuda) return refuse("CUDA graphs are not implemented yet (docs/performance.md)");
  if (train.offload().optimizer() || config.schedule.host_input_slots > 0) {
    return refuse("offload copies by the host, which waits for the device");
  }
  if (!config.decide_on_device && !config.streams) return refuse("the host decides about the update");
  if (config.plugin != nullptr) return refuse("a custom model's modules may read the device from the host");
  if (!TakesRateFromDevice(train.optimizer())) {
    return refuse("this optimizer computes with the learning rate on the host; adamw and sgd do not");
  }
  return absl::OkStatus();
}

}  // namespace muster::engine
