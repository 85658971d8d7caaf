#include "worker/trainer/agree_on_status.h"

#include <ATen/ops/full.h>

namespace muster::trainer {

absl::Status Agree(collectives::Group* group, Device device, const absl::Status& own, const absl::Status& others) {
  if (group == nullptr) return own;
  const at::Device where(device == DEVICE_CUDA ? at::kCUDA : at::kCPU);
  const at::Tensor failed = at::full({1}, own.ok() ? 0.0 : 1.0, at::TensorOptions(at::kDouble).device(where));
  const absl::Status reduced = group->AllReduce(failed)->Wait();
  if (!own.ok()) return own;
  if (!reduced.ok()) return reduced;
  const bool all = failed.item<double>() == 0;
  // An aborted collective leaves a number that says nothing.
  if (absl::Status health = group->Health(); !health.ok()) return health;
  return all ? absl::OkStatus() : others;
}

}  // namespace muster::trainer
