#include "worker/engine/state.h"

#include <ATen/ops/zeros.h>

#include <utility>

namespace muster::engine {

State::Kind& State::AddKind(std::string name) { return kinds_.emplace_back(Kind{std::move(name), {}}); }

void State::AddPiece(Kind& kind, const OwnedExtent& part, const at::Tensor& values) {
  kind.pieces.push_back({&part, values, values.is_cpu() ? values : at::zeros(values.sizes(), at::kFloat)});
}

void State::AddParameters() {
  Kind& kind = AddKind("parameter");
  for (const OwnedExtent& part : *parts_) AddPiece(kind, part, part.master);
}

void State::Add(std::string name, const at::Tensor& values) {
  Kind& kind = AddKind(std::move(name));
  for (const OwnedExtent& part : *parts_) AddPiece(kind, part, values.narrow(0, part.own, part.length));
}

std::vector<StateView> State::Views() {
  std::vector<StateView> views;
  for (Kind& kind : kinds_) {
    for (OwnedState& piece : kind.pieces) {
      const Tensor& tensor = *piece.part->tensor;
      views.push_back({kind.name, tensor.name(), std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end()),
                       static_cast<uint64_t>(piece.part->begin),
                       absl::MakeSpan(piece.host.mutable_data_ptr<float>(), static_cast<size_t>(piece.part->length))});
    }
  }
  return views;
}

void State::ToHost() {
  for (Kind& kind : kinds_) {
    for (OwnedState& piece : kind.pieces) {
      if (!piece.host.is_same(piece.device)) piece.host.copy_(piece.device);
    }
  }
}

void State::FromHost() {
  for (Kind& kind : kinds_) {
    for (OwnedState& piece : kind.pieces) {
      if (!piece.host.is_same(piece.device)) piece.device.copy_(piece.host);
    }
  }
}

}  // namespace muster::engine
