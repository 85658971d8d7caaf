// What a checkpoint holds of this rank: parameters and the optimizer's state, as far as it owns them, and on a GPU
// their copies in host memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "worker/engine/engine.h"
#include "worker/engine/storage.h"

namespace muster::engine {

class State {
 public:
  // `parts` outlive the state.
  explicit State(const std::vector<OwnedExtent>* parts) : parts_(parts) {}
  void AddParameters();
  // `kind`: of StateView; `values`: fp32, of all that is owned.
  void Add(std::string kind, const at::Tensor& values);
  std::vector<StateView> Views();
  // Nothing on a CPU, where both are the same.
  void ToHost();
  void FromHost();

 private:
  struct OwnedState {
    const OwnedExtent* part;
    at::Tensor device;
    at::Tensor host;
  };
  struct Kind {
    std::string name;
    std::vector<OwnedState> pieces;
  };
  Kind& AddKind(std::string name);
  void AddPiece(Kind& kind, const OwnedExtent& part, const at::Tensor& values);

  const std::vector<OwnedExtent>* const parts_;
  std::vector<Kind> kinds_;
};

}  // namespace muster::engine
