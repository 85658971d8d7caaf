#include "worker/units/tensor_rows.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "models/inventory.h"

namespace muster::units {

at::Tensor TensorRows::Whole(const at::Tensor& rows) const {
  if (!parts_) return rows;
  at::Tensor all = at::empty({ranks_->size() * rows.size(0), rows.size(1)}, rows.options());
  ranks_->Gather(rows.contiguous(), all);
  return all;
}

at::Tensor TensorRows::Summed(const at::Tensor& products) const {
  RowSum sum(*this, products, products.size(0));
  sum.Computed();
  return sum.Wait();
}

RowSum::RowSum(const TensorRows& ranks, at::Tensor products, int64_t piece)
    : ranks_(ranks),
      products_(std::move(products)),
      piece_(piece),
      pieces_((products_.size(0) + piece - 1) / piece),
      chunks_(ranks.divided() ? 1 : static_cast<int64_t>(models::SumChunks(static_cast<uint64_t>(pieces_)))) {}

void RowSum::Computed() {
  ++computed_;
  const auto end = [&](int64_t chunk) { return chunk * pieces_ / chunks_; };
  if (ranks_.alone() || computed_ < end(started_ + 1)) return;
  if (ranks_.divided()) {
    ranks_.ranks().StartSumScattered(products_);
  } else {
    const int64_t first = end(started_) * piece_, last = std::min(end(started_ + 1) * piece_, products_.size(0));
    ranks_.ranks().StartSum(products_.narrow(0, first, last - first));
  }
  ++started_;
}

at::Tensor RowSum::Wait() {
  if (ranks_.alone()) return products_;
  ranks_.ranks().Finish();
  if (!ranks_.divided()) return products_;
  const int64_t part = products_.size(0) / ranks_.parts();
  return products_.narrow(0, ranks_.ranks().rank() * part, part).clone();  // lets go of the rest
}

VectorSinks::VectorSinks(const TensorRows& ranks, std::vector<at::Tensor> own, const std::vector<int>& partial)
    : ranks_(ranks), sinks_(std::move(own)) {
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
  for (const auto& [sum, own] : partial_) at::Tensor(own).add_(sum);
}

}  // namespace muster::units
