#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

#ifdef MUSTER_CUDA
#include <ATen/ops/from_blob.h>
#include <cuda_runtime_api.h>
#endif

namespace muster::engine {

namespace {

constexpr char kBufferKind[] = "buffer";

bool IsNarrow(const at::Tensor& values) { return values.scalar_type() == at::kBFloat16; }

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

void CopyToHost(const at::Tensor& values, const at::Tensor& copy) { copy.copy_(values, /*non_blocking=*/true); }

}  // namespace

void State::AddState(Kind& kind, OwnedState state) {
  const bool copied = copy_all_ || state.values.is_cuda();
  if (copied) {
    state.begin = elements_;
    elements_ += IsNarrow(state.values) ? (state.values.numel() + 1) / 2 : state.values.numel();
  }
  gpu_ |= state.values.is_cuda(), live_ |= !copied;
  kind.states.push_back(std::move(state));
}

void State::AddState(Kind& kind, const OwnedExtent& extent, const at::Tensor& values) {
  const Tensor& tensor = *extent.tensor;
  const auto& shape = tensor.has_box() ? tensor.box().shape() : tensor.shape();
  AddState(kind, {.tensor = extent.tensor,
                  .shape = {shape.begin(), shape.end()},
                  .values = values,
                  .first = static_cast<uint64_t>(extent.begin),
                  .box = models::FlatBoxOf(tensor),
                  .counts = extent.counts});
}

void State::AddParameters() {
  Kind& kind = KindOf("parameter");
  for (const OwnedExtent& extent : *extents_) AddState(kind, extent, extent.stored);
}

State::Kind& State::KindOf(const std::string& name) {
  for (Kind& kind : kinds_) {
    if (kind.name == name) return kind;
  }
  return kinds_.emplace_back(Kind{name, {}});
}

void State::Add(const StatePart& part) {
  Kind& kind = KindOf(part.kind);
  for (const OwnedExtent& extent : *extents_) {
    // Frozen extents have own = -1. A part ends at the end of an extent, or in the padding that follows it.
    if (extent.own < part.begin || extent.own >= part.begin + part.length) continue;
    if (!part.shape.empty()) {
      AddState(kind, {.tensor = extent.tensor, .shape = part.shape, .values = part.values, .counts = extent.counts});
    } else {
      AddState(kind, extent, part.values.narrow(0, extent.own - part.begin, extent.length));
    }
  }
}

void State::AddOfReplica(const std::string& kind, int64_t own, const at::Tensor& values) {
  Kind& of = KindOf(kind);
  for (const OwnedExtent& extent : *extents_) {
    if (extent.own < 0) continue;
    const int64_t begin = std::max(own, extent.own), end = std::min(own + values.numel(), extent.own + extent.length);
    if (begin >= end) continue;
    OwnedExtent part = extent;
    part.begin += begin - extent.own;
    AddState(of, part, values.narrow(0, begin - own, end - begin));
    of.states.back().of_replica = true;
  }
}

void State::AddFactorOfReplica(const std::string& kind, int64_t own, const at::Tensor& values) {
  for (const OwnedExtent& extent : *extents_) {
    if (own < extent.own || own >= extent.own + extent.length || extent.own < 0) continue;
    const int64_t columns = static_cast<int64_t>(models::Elements(*extent.tensor)) / extent.tensor->shape(0);
    AddState(KindOf(kind), {.tensor = extent.tensor,
                            .shape = {values.sizes().begin(), values.sizes().end()},
                            .first_row = static_cast<uint64_t>((extent.begin + own - extent.own) / columns),
                            .values = values.view({-1}),
                            .counts = extent.counts,
                            .of_replica = true});
    return;
  }
}

void State::AddBuffer(const Tensor* tensor, const at::Tensor& values) {
  AddState(KindOf(kBufferKind),
           {.tensor = tensor, .shape = {tensor->shape().begin(), tensor->shape().end()}, .values = values});
}

at::Tensor State::CopyOf(const OwnedState& state) const {
  const int64_t elements = state.values.numel();
  if (!IsNarrow(state.values)) return copy_.narrow(0, state.begin, elements);
  return copy_.narrow(0, state.begin, (elements + 1) / 2).view(at::kBFloat16).narrow(0, 0, elements);
}

void State::Allocate() {
  if (elements_ == 0 || copy_.defined()) return;
  copy_ = at::zeros({elements_}, at::kFloat);
  if (gpu_) copy_ = PageLocked(copy_);
}

template <typename Visit>
void State::ForEachCopy(Which which, const Visit& visit) {
  Allocate();
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) {
      const bool in_passes = kind.name == kBufferKind || state.of_replica;
      if (which != Which::kAll && in_passes != (which == Which::kPasses)) continue;
      if (state.begin >= 0) visit(state.values, CopyOf(state));
    }
  }
}

std::vector<StateView> State::Views() {
  Allocate();
  std::vector<StateView> views;
  for (const Kind& kind : kinds_) {
    for (const OwnedState& state : kind.states) {
      const at::Tensor host = state.begin >= 0 ? CopyOf(state) : state.values;
      StateView& view = views.emplace_back();
      view.kind = kind.name, view.tensor = state.tensor->name(), view.shape = state.shape, view.begin = state.first;
      if (state.first_row > 0) absl::StrAppend(&view.tensor, "[", state.first_row, ":]");
      view.box = state.box, view.counts = state.counts, view.replica = state.of_replica ? replica_ : -1;
      const size_t elements = static_cast<size_t>(host.numel());
      if (IsNarrow(host)) {
        view.bf16 = absl::MakeSpan(static_cast<uint16_t*>(host.mutable_data_ptr()), elements);
      } else {
        view.values = absl::MakeSpan(host.mutable_data_ptr<float>(), elements);
      }
    }
  }
  return views;
}

void State::BuffersToHost() { ForEachCopy(Which::kPasses, CopyToHost); }
void State::OwnedToHost() { ForEachCopy(Which::kUpdate, CopyToHost); }

std::vector<Access> State::OwnedToHostAccesses() {
  std::vector<Access> accesses;
  ForEachCopy(Which::kUpdate, [&](const at::Tensor& values, const at::Tensor& copy) {
    accesses.push_back(Reads(values));
    accesses.push_back(Writes(copy));
  });
  return accesses;
}

void State::FromHost() {
  ForEachCopy(Which::kAll, [](const at::Tensor& values, const at::Tensor& copy) { values.copy_(copy); });
  copy_.reset();
}

}  // namespace muster::engine
