#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <functional>
#include <utility>

#ifdef MUSTER_CUDA
#include <c10/cuda/CUDAStream.h>
#endif

namespace muster::engine {

void State::AddKind(std::string name, const std::function<at::Tensor(const OwnedExtent&)>& values) {
  Kind& kind = kinds_.emplace_back(Kind{std::move(name), {}});
  for (const OwnedExtent& extent : *extents_) {
    kind.states.push_back({&extent, values(extent), elements_});
    elements_ += extent.length;
  }
}

void State::AddParameters() {
  AddKind("parameter", [](const OwnedExtent& extent) { return extent.master; });
}

void State::Add(std::string name, const at::Tensor& values) {
  AddKind(std::move(name), [&](const OwnedExtent& extent) { return values.narrow(0, extent.own, extent.length); });
}

void State::Allocate() {
  if (!copies_ || copy_.defined()) return;
  const bool gpu = !extents_->empty() && extents_->front().master.is_cuda();
  copy_ = at::zeros({elements_}, at::TensorOptions(at::kFloat).pinned_memory(gpu));
}

std::vector<StateView> State::Views() {
  Allocate();
  std::vector<StateView> views;
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) {
      const Tensor& tensor = *state.extent->tensor;
      const at::Tensor host = copies_ ? CopyOf(state) : state.values;
      views.push_back({kind.name, tensor.name(), std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end()),
                       static_cast<uint64_t>(state.extent->begin),
                       absl::MakeSpan(host.mutable_data_ptr<float>(), static_cast<size_t>(state.extent->length))});
    }
  }
  return views;
}

void State::ToHost() {
  if (!copies_) return;
  Allocate();
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) CopyOf(state).copy_(state.values, /*non_blocking=*/true);
  }
#ifdef MUSTER_CUDA
  if (copy_.is_pinned()) c10::cuda::getCurrentCUDAStream().synchronize();
#endif
}

void State::FromHost() {
  if (!copies_) return;
  Allocate();
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) state.values.copy_(CopyOf(state));
  }
  copy_.reset();
}

}  // namespace muster::engine
