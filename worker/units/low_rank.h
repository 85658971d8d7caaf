// Low-rank adapters of linear layers (Hu et al. 2021): beside a weight, y += scale (x A^T) B^T.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "proto/inventory.pb.h"
#include "worker/units/gemm.h"
#include "worker/units/unit.h"

namespace muster::units {

// Where a linear layer's adapter is among its unit's parameters.
struct AdapterPlace {
  int a = -1, b = -1;  // -1: it has none
  double scale = 0;
};
// By tensor of `unit`, in the inventory's order.
std::vector<AdapterPlace> AdapterPlaces(const Unit& unit);

// x [rows, in], y and its gradient d [rows, out], which may be columns of wider matrices. Throws c10::Error.
class Adapter {
 public:
  Adapter(const Gemms& gemms, Parameter a, Parameter b, double scale)
      : gemms_(gemms), a_(std::move(a)), b_(std::move(b)), scale_(scale) {}

  // Adds to y.
  void Forward(const at::Tensor& x, const at::Tensor& y) const;

  // scale d B [rows, rank], for the two below.
  at::Tensor InnerGradient(const at::Tensor& d) const;
  // Adds the gradients of A and B.
  void AddGradients(const at::Tensor& x, const at::Tensor& d, const at::Tensor& inner) const;
  // Adds to the gradient of x.
  void AddInputGradient(const at::Tensor& inner, const at::Tensor& d_x) const;

 private:
  Gemms gemms_;
  Parameter a_, b_;
  double scale_;
};

// By tensor of `unit`.
using Adapters = std::vector<std::optional<Adapter>>;
Adapters MakeAdapters(const Unit& unit, const std::vector<Parameter>& parameters, const Gemms& gemms);

// For units of LibTorch's operators: y [rows, out] plus what the adapter at `place` adds, or y where there is none.
// `leaf(index)` is a parameter.
template <typename F>
at::Tensor WithAdapter(const Gemms& gemms, const AdapterPlace& place, const at::Tensor& x, const at::Tensor& y,
                       const F& leaf) {
  if (place.a < 0) return y;
  const at::Tensor inner = gemms.Differentiable(x, leaf(place.a).t(), {});
  return y.add(gemms.Differentiable(inner, leaf(place.b).t(), {}), place.scale);
}

}  // namespace muster::units
