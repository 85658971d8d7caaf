#include "worker/units/tensor_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

namespace muster::units {

at::Tensor TensorRows::Whole(const at::Tensor& rows) const {
  if (!parts_) return rows;
  at::Tensor all = at::empty({ranks_->size() * rows.size(0), rows.size(1)}, rows.options());
  ranks_->Gather(rows.contiguous(), all);
  return all;
}

at::Tensor TensorRows::Summed(const at::Tensor& products) const {
  if (alone()) return products;
  if (!parts_) {
    ranks_->Sum(products);
    return products;
  }
  at::Tensor part = at::empty({products.size(0) / ranks_->size(), products.size(1)}, products.options());
  ranks_->SumScattered(products, part);
  return part;
}

VectorSinks::VectorSinks(const TensorRows& ranks, const std::vector<Parameter>& parameters,
                         const std::vector<int>& partial)
    : ranks_(ranks) {
  for (const Parameter& parameter : parameters) sinks_.push_back(parameter.gradient);
  if (ranks.alone() || partial.empty()) return;
  int64_t elements = 0;
  for (const int v : partial) elements += sinks_[static_cast<size_t>(v)].numel();
  all_ = at::zeros({elements}, sinks_[static_cast<size_t>(partial[0])].options());
  int64_t at = 0;
  for (const int v : partial) {
    at::Tensor& sink = sinks_[static_cast<size_t>(v)];
    const at::Tensor part = all_.narrow(0, at, sink.numel());
    at += sink.numel();
    partial_.emplace_back(part, sink);
    sink = part;
  }
}

void VectorSinks::Finish() const {
  if (!all_.defined()) return;
  ranks_.ranks().Sum(all_);
  for (const auto& [sum, gradient] : partial_) at::Tensor(gradient).add_(sum);
}

}  // namespace muster::units
