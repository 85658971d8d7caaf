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
  // Autograd reads parameters for both halves, so the first one computes all gradients and the second adds them.
  Activations BackwardInputs(const Context& context, Saved saved, const Activations& grads, Saved& deferred) final;
  void BackwardWeights(Saved deferred) final;

 protected:
  // `in`: the activations, or of the model's first unit the batch's inputs. `kept`: in mode generate, what the unit
  // keeps of the tokens before context.position; else null.
  virtual at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor* kept) const = 0;

  // A parameter as autograd sees it: a leaf that shares the flat buffer's storage.
  const at::Tensor& Leaf(int index) const { return leaves_[static_cast<size_t>(index)]; }

 private:
  const std::vector<Parameter> parameters_;
  std::vector<at::Tensor> leaves_;
};

}  // namespace muster::units
