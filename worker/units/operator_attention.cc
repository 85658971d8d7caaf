#include "worker/units/operator_attention.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>

#include "worker/units/autograd.h"

namespace muster::units {
namespace {

// [sequences, heads, tokens, width of a head] as rows of a matrix: a view where the operator lays its results out as
// its inputs.
at::Tensor AsRows(const at::Tensor& by_head) {
  const at::Tensor by_token = by_head.transpose(1, 2);
  return by_token.reshape({by_token.size(0) * by_token.size(1), by_token.size(2) * by_token.size(3)});
}

}  // namespace

at::Tensor AttendByOperator(const at::Tensor& qkv, std::vector<at::Tensor>* kept) {
  const c10::AutoGradMode mode(kept != nullptr);
  std::vector<at::Tensor> parts;  // leaves: three gradients that no select has to scatter into one
  for (int64_t i = 0; i < 3; ++i) {
    parts.push_back(qkv.select(2, i).transpose(1, 2).detach().requires_grad_(kept != nullptr));
  }
  parts.push_back(at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true));
  if (kept != nullptr) *kept = parts;
  return AsRows(parts[3].detach());
}

void AttendByOperatorBackward(const std::vector<at::Tensor>& kept, const at::Tensor& d_out, at::Tensor d_qkv) {
  const at::Tensor& q = kept[0];  // [sequences, heads, tokens, width of a head]
  const at::Tensor d = d_out.view({q.size(0), q.size(2), q.size(1), q.size(3)}).transpose(1, 2);
  const std::vector<at::Tensor> gradients = Gradients(kept[3], d, {q, kept[1], kept[2]});
  at::cat_out(d_qkv, {AsRows(gradients[0]), AsRows(gradients[1]), AsRows(gradients[2])}, 1);
}

}  // namespace muster::units
