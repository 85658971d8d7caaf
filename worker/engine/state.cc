#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace muster::engine {

State::Kind& State::AddKind(std::string name) { return kinds_.emplace_back(Kind{std::move(name), {}}); }

void State::AddExtent(Kind& kind, const OwnedExtent& extent, const at::Tensor& values) {
  kind.states.push_back({&extent, values, values.is_cpu() ? values : at::zeros(values.sizes(), at::kFloat)});
}

void State::AddParameters() {
  Kind& kind = AddKind("parameter");
  for (const OwnedExtent& extent : *extents_) AddExtent(kind, extent, extent.master);
}

void State::Add(std::string name, const at::Tensor& values) {
  Kind& kind = AddKind(std::move(name));
  for (const OwnedExtent& extent : *extents_) AddExtent(kind, extent, values.narrow(0, extent.own, extent.length));
}

std::vector<StateView> State::Views() {
  std::vector<StateView> views;
  for (Kind& kind : kinds_) {
    for (OwnedState& state : kind.states) {
      const Tensor& tensor = *state.extent->tensor;
      views.push_back(
          {kind.name, tensor.name(), std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end()),
           static_cast<uint64_t>(state.extent->begin),
           absl::MakeSpan(state.host.mutable_data_ptr<float>(), static_cast<size_t>(state.extent->length))});
    }
  }
  return views;
}

void State::ToHost() {
  for (Kind& kind : kinds_) {
    for (OwnedState& state : kind.states) {
      if (!state.host.is_same(state.device)) state.host.copy_(state.device);
    }
  }
}

void State::FromHost() {
  for (Kind& kind : kinds_) {
    for (OwnedState& state : kind.states) {
      if (!state.host.is_same(state.device)) state.device.copy_(state.host);
    }
  }
}

}  // namespace muster::engine
