// What units do with the ranks that compute the same samples with other shares of the tensors (Context::tensor): tensor
// parallelism (Shoeybi et al. 2019, Megatron-LM), and sequence parallelism (Korthikanti et al. 2022), where between its
// GEMMs each of n ranks has a part of the rows: rank r has [r * rows / n, (r + 1) * rows / n) of the microbatch's.
//
//   y = ranks.Summed(x * rows of W);          // row-parallel, after which each rank has all rows or its part
//   z = ranks.Whole(norm(y)) * columns of W;  // column-parallel
//
// Sums are in the dtype of the products: half the bytes in bf16, and each product has been rounded to it anyway.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "worker/units/unit.h"

namespace muster::units {

class TensorRows {
 public:
  // `ranks` null: this rank computes the unit alone. `parts`: each has a part of the rows. Prompts, whose tokens are
  // any number, are whole on each rank.
  TensorRows(const Context& context, bool parts)
      : ranks_(context.tensor), parts_(ranks_ != nullptr && parts && context.mode != Mode::kGenerate) {}

  bool alone() const { return ranks_ == nullptr; }
  bool divided() const { return parts_; }
  int64_t parts() const { return parts_ ? ranks_->size() : 1; }
  // Among the rows of the microbatch, the first of this rank's `rows`.
  int64_t first(int64_t rows) const { return parts_ ? ranks_->rank() * rows : 0; }

  // All rows, from this rank's: a copy only where those are a part.
  at::Tensor Whole(const at::Tensor& rows) const;
  // This rank's rows of the sum over the ranks of `products`, which has all rows and is overwritten.
  at::Tensor Summed(const at::Tensor& products) const;  // as RowSum, of one piece

  TensorRanks& ranks() const { return *ranks_; }

 private:
  TensorRanks* ranks_;
  bool parts_;
};

// A sum over the ranks that is under way while they compute:
//
//   RowSum sum(ranks, products, piece);
//   for (each piece of rows) {
//     ...                               // computes those rows of `products`
//     sum.Computed();
//   }
//   ...                                 // reads nothing of `products`
//   y = sum.Wait();                     // this rank's rows of the sum
//
// Where each rank gets all rows, pieces are summed by chunks (models::SumChunks), each as soon as it is computed. Where
// it gets its part, they are summed together after the last one. A rank that is alone gets `products`.
class RowSum {
 public:
  // `products` [rows, width] in pieces of `piece` rows, of which the last may have fewer.
  RowSum(const TensorRows& ranks, at::Tensor products, int64_t piece);
  void Computed();  // one more piece
  at::Tensor Wait();

 private:
  const TensorRows& ranks_;
  const at::Tensor products_;
  const int64_t piece_, pieces_, chunks_;
  int64_t computed_ = 0, started_ = 0;  // pieces; chunks
};

// Where a backward adds the gradients of parameters. Of `partial` vectors each rank has those of its rows or heads
// only; Finish adds their sum over the ranks to their own sinks. What is added to another sink is the gradient.
class VectorSinks {
 public:
  // `own`: by parameter (split_backward.h).
  VectorSinks(const TensorRows& ranks, std::vector<at::Tensor> own, const std::vector<int>& partial);

  const at::Tensor& operator[](int parameter) const { return sinks_[static_cast<size_t>(parameter)]; }
  const std::vector<at::Tensor>& all() const { return sinks_; }  // by parameter
  void Finish() const;

 private:
  const TensorRows& ranks_;
  std::vector<at::Tensor> sinks_;                                // by parameter
  at::Tensor all_;                                               // those below; undefined: none is partial
  std::vector<std::pair<at::Tensor, at::Tensor>> partial_ = {};  // what was added up, and where it belongs
};

}  // namespace muster::units
