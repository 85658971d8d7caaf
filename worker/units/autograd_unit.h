// A unit whose backward is LibTorch's autograd.
#pragma once

#include <vector>

#include "worker/units/unit.h"

namespace muster::units {

class AutogradUnit : public UnitModule {
 public:
  explicit AutogradUnit(std::vector<Parameter> parameters);

  Activations Forward(const Context& context, const Activations& in, Saved& saved) final;
  Activations Backward(const Context& context, Saved saved, const Activations& grads) final;

 protected:
  // `kept`: in mode generate, what the unit keeps of the tokens before `position`; else null, and `position` is 0.
  virtual at::Tensor Compute(const at::Tensor& in, at::Tensor* kept, int64_t position) const = 0;

  // A parameter as autograd sees it: a leaf that shares the flat buffer's storage.
  const at::Tensor& Leaf(int index) const { return leaves_[static_cast<size_t>(index)]; }

 private:
  const std::vector<Parameter> parameters_;
  std::vector<at::Tensor> leaves_;
};

}  // namespace muster::units
