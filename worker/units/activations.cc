#include "worker/units/activations.h"

#include <c10/util/StringUtil.h>

#include "absl/strings/str_cat.h"

namespace muster::units {

at::ScalarType TypeOf(const Activation& activation, at::ScalarType compute) {
  return activation.type() == Activation::COMPUTE ? compute : at::kFloat;
}

std::vector<int64_t> ShapeOf(const Activation& activation, int64_t samples) {
  std::vector<int64_t> shape = {samples};
  for (const uint64_t n : activation.shape()) shape.push_back(static_cast<int64_t>(n));
  return shape;
}

absl::Status CheckActivations(const Unit& unit, int64_t samples, at::ScalarType compute, const Activations& given) {
  const auto differs = [&](auto... what) {
    return absl::InternalError(absl::StrCat("unit ", unit.name(), " declares ", what...));
  };
  if (given.size() != static_cast<size_t>(unit.outputs_size())) {
    return differs(unit.outputs_size(), " activations, but there are ", given.size());
  }
  for (int i = 0; i < unit.outputs_size(); ++i) {
    const Activation& declared = unit.outputs(i);
    const at::Tensor& tensor = given[static_cast<size_t>(i)];
    const std::vector<int64_t> shape = ShapeOf(declared, samples);
    const at::ScalarType type = TypeOf(declared, compute);
    if (tensor.defined() && tensor.sizes() == at::IntArrayRef(shape) && tensor.scalar_type() == type) continue;
    return differs(declared.name(), " as ", at::toString(type), " ", c10::str(at::IntArrayRef(shape)), ", but it is ",
                   tensor.defined() ? c10::str(at::toString(tensor.scalar_type()), " ", tensor.sizes()) : "undefined");
  }
  return absl::OkStatus();
}

}  // namespace muster::units
