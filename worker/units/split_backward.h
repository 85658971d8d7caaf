// Where a hand-written backward adds gradients: to the parameters' own sinks or, when it is split (UnitModule,
// BackwardInputs), beside them until the second half.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/units/unit.h"

namespace muster::units {

// Those of vectors are added as the backward goes; those of matrices are GEMMs of an input and an output's gradient,
// which can be left for later.
class GradientSinks {
 public:
  // To these, by parameter: the parameters' own, or VectorSinks' (tensor_rows.h).
  explicit GradientSinks(std::vector<at::Tensor> gradients) : gradients_(std::move(gradients)) {}
  // Into `deferred`, which becomes zeros for all vectors, then the two operands of each GEMM.
  GradientSinks(const std::vector<Parameter>& parameters, Saved& deferred);

  // Of a vector, by the number of its parameter.
  const at::Tensor& operator[](int parameter) const { return gradients_[static_cast<size_t>(parameter)]; }
  bool defers() const { return deferred_ != nullptr; }
  // REQUIRES: defers(). The operands do not change any more.
  void Defer(const at::Tensor& x, const at::Tensor& d) const;
  // Where the gradient of x may be put: in place of x, unless a deferred GEMM reads that.
  at::Tensor Beside(const at::Tensor& x) const;
  // `d`, or a copy if it may change before a deferred GEMM reads it.
  at::Tensor Unchanging(const at::Tensor& d) const;

 private:
  std::vector<at::Tensor> gradients_;
  std::vector<at::Tensor>* deferred_ = nullptr;
};

// Adds the vectors' gradients to the parameters' own, and returns the operands in the order in which they were
// deferred.
std::vector<at::Tensor> AddDeferredVectors(const std::vector<Parameter>& parameters, Saved deferred);

}  // namespace muster::units
