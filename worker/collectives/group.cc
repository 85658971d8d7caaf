#include "worker/collectives/group.h"

#include <ATen/ops/zeros.h>

namespace muster::collectives {

absl::Status Connect(Group& group, int from, int to, c10::Device device) {
  const at::Tensor token = at::zeros({1}, at::TensorOptions(at::kFloat).device(device));
  const std::unique_ptr<Work> work = group.rank() == from ? group.Send(token, to) : group.Recv(token, from);
  if (absl::Status status = work->Wait(); !status.ok()) return status;
  (void)token.cpu();  // on a GPU, Wait does not wait for the device
  return group.Health();
}

}  // namespace muster::collectives
