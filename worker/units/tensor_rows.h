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
#include <ATen/ops/empty.h>

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
  // This rank's rows of the sum over the ranks of `products`, which has all rows and is overwritten. Between the two
  // calls the caller computes, and reads nothing of `products`.
  void StartSum(const at::Tensor& products) const;
  at::Tensor Sum(const at::Tensor& products) const;
  at::Tensor Summed(const at::Tensor& products) const {
    StartSum(products);
    return Sum(products);
  }

  TensorRanks& ranks() const { return *ranks_; }

 private:
  TensorRanks* ranks_;
  bool parts_;
};

// The rows of a microbatch by chunks (models::RowChunks), so that ranks exchange one while they compute another:
//
//   RowChunks chunks(ranks, normed.size(0), piece);
//   const at::Tensor x = chunks.StartWhole(normed), y = at::empty({chunks.rows(), width});
//   for (const RowChunks::Chunk& chunk : chunks.all()) {
//     chunks.Await();           // the chunk's rows of x are there
//     ...                       // computes those of y
//     chunks.StartSum(chunk, y);
//   }
//   ...                         // reads nothing of y
//   sum = chunks.Sum(y);        // this rank's rows of the sum over the ranks
//
// Where each of n ranks has a part of the rows, chunk c of k is the c-th k-th of each part, in the order of ranks. Then
// x and y have the chunks one after another, while the microbatch's order is part after part.
class RowChunks {
 public:
  struct Chunk {
    int64_t begin = 0, end = 0;  // rows of x and y
  };
  // `own`: rows of this rank; `piece`: how many the caller computes at a time. A chunk begins at a multiple of those,
  // or anywhere where ranks have parts.
  RowChunks(const TensorRows& ranks, int64_t own, int64_t piece);

  int64_t rows() const { return rows_; }
  const std::vector<Chunk>& all() const { return chunks_; }

  // From this rank's rows, those of all ranks: a copy only where these are a part, and then Await waits for the next
  // chunk, of both where there are two.
  at::Tensor StartWhole(const at::Tensor& own) { return StartWhole(std::vector<at::Tensor>{own})[0]; }
  std::pair<at::Tensor, at::Tensor> StartWhole(const at::Tensor& a, const at::Tensor& b) {
    std::vector<at::Tensor> all = StartWhole(std::vector<at::Tensor>{a, b});
    return {std::move(all[0]), std::move(all[1])};
  }
  void Await() const;

  void StartSum(const Chunk& chunk, const at::Tensor& y) const;
  at::Tensor Sum(const at::Tensor& y) const;

  // A chunk of x, which has the microbatch's order; and back. A copy only where the orders differ.
  at::Tensor Of(const Chunk& chunk, const at::Tensor& x) const;
  // Calls compute(rows of y), contiguous, and puts what it computes into y, which has the microbatch's order.
  template <typename F>
  void Into(const Chunk& chunk, const at::Tensor& y, const F& compute) const {
    const int64_t begin = chunk.begin, rows = chunk.end - chunk.begin;
    const at::Tensor computed = reorders() ? at::empty({rows, y.size(1)}, y.options()) : y.narrow(0, begin, rows);
    compute(computed);
    if (reorders()) Places(chunk, y).copy_(computed.view_as(Places(chunk, y)));
  }

 private:
  std::vector<at::Tensor> StartWhole(const std::vector<at::Tensor>& own);
  bool reorders() const { return ranks_.divided() && chunks_.size() > 1; }
  // Of each part the rows that belong to the chunk: [n, rows of one, width].
  at::Tensor Places(const Chunk& chunk, const at::Tensor& x) const;

  const TensorRows& ranks_;
  int64_t rows_ = 0;
  std::vector<Chunk> chunks_;
  size_t gathered_ = 0;  // tensors
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
