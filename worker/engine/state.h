// This rank's part of a checkpoint: the parameters and optimizer state that it owns, and on a GPU their host copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/storage.h"

namespace muster::engine {

class State {
 public:
  // `extents` outlive the state.
  explicit State(const std::vector<OwnedExtent>* extents) : extents_(extents) {}
  void AddParameters();
  // `kind`: as StateView::kind; `values`: fp32, all owned elements.
  void Add(std::string kind, const at::Tensor& values);
  std::vector<StateView> Views();
  // No-ops on a CPU, where device and host tensors are the same.
  void ToHost();
  void FromHost();

 private:
  struct OwnedState {
    const OwnedExtent* extent;
    at::Tensor device;
    at::Tensor host;
  };
  struct Kind {
    std::string name;
    std::vector<OwnedState> states;
  };
  Kind& AddKind(std::string name);
  void AddExtent(Kind& kind, const OwnedExtent& extent, const at::Tensor& values);

  const std::vector<OwnedExtent>* const extents_;
  std::vector<Kind> kinds_;
};

}  // namespace muster::engine
