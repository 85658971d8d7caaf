#include "worker/units/low_rank.h"

#include <ATen/ops/empty.h>

#include <map>
#include <string>
#include <utility>

namespace muster::units {

std::vector<AdapterPlace> AdapterPlaces(const Unit& unit) {
  std::map<std::string, int> index;
  for (int t = 0; t < unit.tensors_size(); ++t) index[unit.tensors(t).name()] = t;
  std::vector<AdapterPlace> places;
  for (const Tensor& tensor : unit.tensors()) {
    AdapterPlace& place = places.emplace_back();
    if (!tensor.has_low_rank()) continue;
    place = {index.at(tensor.low_rank().a()), index.at(tensor.low_rank().b()), tensor.low_rank().scale()};
  }
  return places;
}

void Adapter::Forward(const at::Tensor& x, const at::Tensor& y) const {
  const at::Tensor inner = at::empty({x.size(0), a_.value.size(0)}, x.options());
  gemms_.Compute(x, a_.value.t(), inner);
  gemms_.AddTo(y, inner, b_.value.t(), scale_);
}

at::Tensor Adapter::InnerGradient(const at::Tensor& d) const {
  at::Tensor inner = at::empty({d.size(0), b_.value.size(1)}, d.options());
  gemms_.Compute(d, b_.value, inner);
  return inner.mul_(scale_);
}

void Adapter::AddGradients(const at::Tensor& x, const at::Tensor& d, const at::Tensor& inner) const {
  gemms_.AddTo(a_.gradient, inner.t(), x);
  const at::Tensor forward = at::empty({x.size(0), a_.value.size(0)}, x.options());
  gemms_.Compute(x, a_.value.t(), forward);
  gemms_.AddTo(b_.gradient, d.t(), forward, scale_);
}

void Adapter::AddInputGradient(const at::Tensor& inner, const at::Tensor& d_x) const {
  gemms_.AddTo(d_x, inner, a_.value);
}

Adapters MakeAdapters(const Unit& unit, const std::vector<Parameter>& parameters, const Gemms& gemms) {
  Adapters adapters;
  const auto at = [&](int index) { return parameters[static_cast<size_t>(index)]; };
  for (const AdapterPlace& place : AdapterPlaces(unit)) {
    adapters.emplace_back();
    if (place.a >= 0) adapters.back().emplace(gemms, at(place.a), at(place.b), place.scale);
  }
  return adapters;
}

}  // namespace muster::units
