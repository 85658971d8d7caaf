// What units do with the ranks that have the other tokens of the same sequences (Context::sequence): context
// parallelism, where attention sees the keys and values of all tokens (Grattafiori et al. 2024, section 3.3.2).
//
//   const OwnTokens own(context, tokens);
//   Rope(x, own.Rows(cosine), own.Rows(sine), ...);
//   at::Tensor all = own.Gather(own.StartGather(k, v));  // of all tokens
//   ...
//   own.ScatterSums(d_all, d_k, d_v);
//
// Of keys and values beside each other, those of all tokens are [2, samples, tokens, heads, head] in the order of the
// sequence; a rank's own k and v are [samples, own tokens, heads, head] each and may be views.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "models/sequence.h"
#include "worker/units/unit.h"

namespace muster::units {

class OwnTokens {
 public:
  // `tokens`: so many of a sequence are this rank's. The ranks of `context` outlive it. A c10::Error: mode generate
  // with Context::sequence.
  OwnTokens(const Context& context, int64_t tokens);

  // Whether this rank has all tokens. Then there is nothing to gather.
  bool whole() const { return ranks_ == nullptr; }
  // Where they are in the sequence.
  const std::vector<models::TokenRun>& runs() const { return runs_; }

  // Their rows of `table`, which has one for each position. A copy unless they are one run.
  at::Tensor Rows(const at::Tensor& table) const;
  // Adds theirs to these rows.
  void AddToRows(const at::Tensor& own, const at::Tensor& table) const;

  // One collective. Until Gather takes what the first call returns, which it does soon, the caller computes and waits
  // for no other ranks.
  at::Tensor StartGather(const at::Tensor& k, const at::Tensor& v) const;
  at::Tensor Gather(at::Tensor started) const;
  // One collective: d_k and d_v become those of this rank's tokens of the sum over the ranks of `all`, which is let go.
  void ScatterSums(at::Tensor all, const at::Tensor& d_k, const at::Tensor& d_v) const;

 private:
  TensorRanks* ranks_;
  std::vector<models::TokenRun> runs_;
};

}  // namespace muster::units
