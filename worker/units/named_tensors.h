// The tensors of a batch, by the names that the inventory's task gives them.
//
//   NamedTensors batch = {{"inputs", ids}, {"targets", next}};
//   batch["inputs"].size(0);
#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace muster::units {

class NamedTensors {
 public:
  NamedTensors() = default;
  NamedTensors(std::initializer_list<std::pair<std::string, at::Tensor>> tensors) : tensors_(tensors) {}

  // Undefined, where there is none of that name.
  const at::Tensor& operator[](std::string_view name) const {
    static const at::Tensor none;
    for (const auto& [own, tensor] : tensors_) {
      if (own == name) return tensor;
    }
    return none;
  }
  // In place of the one of that name, if there is one.
  void Set(std::string_view name, at::Tensor tensor) {
    for (auto& [own, old] : tensors_) {
      if (own != name) continue;
      old = std::move(tensor);
      return;
    }
    tensors_.emplace_back(name, std::move(tensor));
  }

  auto begin() const { return tensors_.begin(); }
  auto end() const { return tensors_.end(); }

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;  // a few
};

}  // namespace muster::units
