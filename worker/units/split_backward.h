// Where a hand-written backward adds gradients: to the parameters' own sinks or, when it is split (UnitModule,
// BackwardInputs), beside them until the second half.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/units/unit.h"

namespace muster::units {

// By parameter: where a whole backward adds the gradient.
std::vector<at::Tensor> OwnGradients(const std::vector<Parameter>& parameters);
// The same of the first half of one, for vectors alone: zeros in `deferred`, which begins with them.
std::vector<at::Tensor> DeferredVectors(const std::vector<Parameter>& parameters, Saved& deferred);

// Those of vectors are added as the backward goes; those of matrices are GEMMs of an input and an output's gradient,
// which can be left for later.
class GradientSinks {
 public:
  // `vectors`: by parameter, of one of the above, or what VectorSinks puts in their place (tensor_rows.h). `deferred`
  // receives the two operands of each GEMM; null: nothing is left for later.
  GradientSinks(std::vector<at::Tensor> vectors, Saved* deferred)
      : vectors_(std::move(vectors)), deferred_(deferred == nullptr ? nullptr : &deferred->tensors) {}

  // Of a vector, by the number of its parameter.
  const at::Tensor& operator[](int parameter) const { return vectors_[static_cast<size_t>(parameter)]; }
  bool defers() const { return deferred_ != nullptr; }
  // REQUIRES: defers(). The operands do not change any more.
  void Defer(const at::Tensor& x, const at::Tensor& d) const;
  // Where the gradient of x may be put: in place of x, unless a deferred GEMM reads that.
  at::Tensor Beside(const at::Tensor& x) const;
  // `d`, or a copy if it may change before a deferred GEMM reads it.
  at::Tensor Unchanging(const at::Tensor& d) const;

 private:
  const std::vector<at::Tensor> vectors_;
  std::vector<at::Tensor>* const deferred_;
};

// Adds the vectors' gradients to the parameters' own, and returns the operands in the order in which they were
// deferred.
std::vector<at::Tensor> AddDeferredVectors(const std::vector<Parameter>& parameters, Saved deferred);

}  // namespace muster::units
