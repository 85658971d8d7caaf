#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <functional>
#include <utility>

#ifdef MUSTER_CUDA
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>
#endif

namespace muster::engine {

namespace {

// The same memory, known to the driver until the result is freed. LibTorch's own allocator of pinned memory rounds up
// to a power of two and keeps what is freed. What the driver refuses stays as it is: copies are slower, and right.
at::Tensor PageLocked(const at::Tensor& pageable) {
#ifdef MUSTER_CUDA
  if (cudaHostRegister(pageable.data_ptr(), pageable.nbytes(), cudaHostRegisterDefault) == cudaSuccess) {
    return at::from_blob(
        pageable.data_ptr(), pageable.sizes(), [pageable](void* data) { (void)cudaHostUnregister(data); },
        pageable.options());
  }
  (void)cudaGetLastError();  // or the next check of LibTorch reports it
#endif
  return pageable;
}

}  // namespace

void State::AddKind(std::string name, const std::function<at::Tensor(const OwnedExtent&)>& values) {
  Kind& kind = kinds_.emplace_back(Kind{std::move(name), {}});
  for (const OwnedExtent& extent : *extents_) {
    AddState(kind, extent.tensor, static_cast<uint64_t>(extent.begin), values(extent));
  }
}

void State::AddState(Kind& kind, const Tensor* tensor, uint64_t first, const at::Tensor& values) {
  kind.states.push_back({tensor, first, values, elements_});
  elements_ += values.numel();
}

void State::AddParameters() {
  AddKind("parameter", [](const OwnedExtent& extent) { return extent.master; });
}

void State::Add(std::string name, const at::Tensor& values) {
  AddKind(std::move(name), [&](const OwnedExtent& extent) { return values.narrow(0, extent.own, extent.length); });
}

void State::AddBuffer(const Tensor* tensor, const at::Tensor& values) {
  if (kinds_.empty() || kinds_.back().name != "buffer") kinds_.push_back(Kind{"buffer", {}});
  AddState(kinds_.back(), tensor, 0, values);
}

void State::Allocate() {
  if (!copies_ || copy_.defined()) return;
  const bool gpu = !extents_->empty() && extents_->front().master.is_cuda();
  copy_ = at::zeros({elements_}, at::kFloat);
  if (gpu) copy_ = PageLocked(copy_);
}

std::vector<StateView> State::Views() {
  Allocate();
  std::vector<StateView> views;
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) {
      const Tensor& tensor = *state.tensor;
      const at::Tensor host = copies_ ? CopyOf(state) : state.values;
      views.push_back({kind.name, tensor.name(), std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end()),
                       state.first, absl::MakeSpan(host.mutable_data_ptr<float>(), static_cast<size_t>(host.numel()))});
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
  if (!extents_->empty() && extents_->front().master.is_cuda()) c10::cuda::getCurrentCUDAStream().synchronize();
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
