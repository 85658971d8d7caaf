// This rank's part of a checkpoint: the parameters and optimizer state that it owns. Where those are on a GPU, also
// their copy in host memory: one page-locked buffer, which exists only from the first checkpoint on, or while one is
// loaded.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/storage.h"

namespace muster::engine {

class State {
 public:
  // `extents` outlive the state. `copies`: Views are of a copy in host memory, as on a GPU.
  State(const std::vector<OwnedExtent>* extents, bool copies) : extents_(extents), copies_(copies) {}
  void AddParameters();
  // `kind`: as StateView::kind; `values`: fp32, all owned elements.
  void Add(std::string kind, const at::Tensor& values);
  // Of kind "buffer". `tensor` outlives the state.
  void AddBuffer(const Tensor* tensor, const at::Tensor& values);
  // Of a copy: what ToHost found last, or zeros; valid until FromHost.
  std::vector<StateView> Views();
  // Without copies both do nothing. FromHost frees the copy.
  void ToHost();
  void FromHost();

 private:
  struct OwnedState {
    const Tensor* tensor;
    uint64_t first;  // element of the tensor
    at::Tensor values;
    int64_t begin;  // in the copy
  };
  struct Kind {
    std::string name;
    std::vector<OwnedState> states;
  };
  void AddKind(std::string name, const std::function<at::Tensor(const OwnedExtent&)>& values);
  void Allocate();
  void AddState(Kind& kind, const Tensor* tensor, uint64_t first, const at::Tensor& values);
  at::Tensor CopyOf(const OwnedState& state) const { return copy_.narrow(0, state.begin, state.values.numel()); }

  const std::vector<OwnedExtent>* const extents_;
  const bool copies_;
  std::vector<Kind> kinds_;
  int64_t elements_ = 0;
  at::Tensor copy_;  // undefined: none
};

}  // namespace muster::engine
