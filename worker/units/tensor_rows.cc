#include "worker/units/tensor_rows.h"

#include <ATen/ops/cat.h>
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

void TensorRows::StartSum(const at::Tensor& products) const {
  if (alone()) return;
  parts_ ? ranks_->StartSumScattered(products) : ranks_->StartSum(products);
}

at::Tensor TensorRows::Sum(const at::Tensor& products) const {
  if (alone()) return products;
  ranks_->Finish();
  if (!parts_) return products;
  const int64_t part = products.size(0) / ranks_->size();
  return products.narrow(0, ranks_->rank() * part, part).clone();  // lets go of the rest
}

RowChunks::RowChunks(const TensorRows& ranks, int64_t own, int64_t piece) : ranks_(ranks), rows_(own * ranks.parts()) {
  const int64_t pieces = ranks.alone() ? 1 : (rows_ + piece - 1) / piece;
  const auto count =
      static_cast<int64_t>(models::RowChunks(static_cast<uint64_t>(rows_), static_cast<uint64_t>(pieces),
                                             static_cast<uint64_t>(ranks.alone() ? 1 : ranks.ranks().size())));
  for (int64_t c = 0; c < count; ++c) {
    const auto at = [&](int64_t chunk) {
      return ranks.divided()  ? own * chunk / count * ranks.parts()
             : chunk == count ? rows_
                              : pieces * chunk / count * piece;
    };
    chunks_.push_back({at(c), at(c + 1)});
  }
}

std::vector<at::Tensor> RowChunks::StartWhole(const std::vector<at::Tensor>& own) {
  if (!ranks_.divided()) return own;
  gathered_ = own.size();
  std::vector<at::Tensor> all;
  for (const at::Tensor& rows : own) all.push_back(at::empty({rows_, rows.size(1)}, rows.options()));
  const int64_t parts = ranks_.parts();
  for (const Chunk& chunk : chunks_) {
    const int64_t rows = chunk.end - chunk.begin;
    for (size_t i = 0; i < own.size(); ++i) {
      ranks_.ranks().StartGather(own[i].narrow(0, chunk.begin / parts, rows / parts).contiguous(),
                                 all[i].narrow(0, chunk.begin, rows));
    }
  }
  return all;
}

void RowChunks::Await() const {
  for (size_t i = 0; i < gathered_; ++i) ranks_.ranks().FinishFirst();
}

void RowChunks::StartSum(const Chunk& chunk, const at::Tensor& y) const {
  ranks_.StartSum(y.narrow(0, chunk.begin, chunk.end - chunk.begin));
}

at::Tensor RowChunks::Sum(const at::Tensor& y) const {
  if (!reorders()) return ranks_.Sum(y);
  ranks_.ranks().Finish();
  const int64_t parts = ranks_.parts(), rank = ranks_.ranks().rank();
  std::vector<at::Tensor> own;
  for (const Chunk& chunk : chunks_) {
    const int64_t rows = (chunk.end - chunk.begin) / parts;
    own.push_back(y.narrow(0, chunk.begin + rank * rows, rows));
  }
  return at::cat(own, 0);
}

at::Tensor RowChunks::Places(const Chunk& chunk, const at::Tensor& x) const {
  const int64_t parts = ranks_.parts();
  return x.view({parts, rows_ / parts, x.size(1)}).narrow(1, chunk.begin / parts, (chunk.end - chunk.begin) / parts);
}

at::Tensor RowChunks::Of(const Chunk& chunk, const at::Tensor& x) const {
  if (!reorders()) return x.narrow(0, chunk.begin, chunk.end - chunk.begin);
  return Places(chunk, x).reshape({chunk.end - chunk.begin, x.size(1)});
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
