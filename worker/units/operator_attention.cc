#include "worker/units/operator_attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"

#include "worker/units/autograd.h"
#include "worker/units/row_kernels.h"
#include "worker/units/shared.h"

namespace muster::units {
namespace {

// [sequences, heads, tokens, width of a head] as rows of a matrix: a view where the operator lays its results out as
// its inputs.
at::Tensor AsRows(const at::Tensor& by_head) {
  const at::Tensor by_token = by_head.transpose(1, 2);
  return by_token.reshape({by_token.size(0) * by_token.size(1), by_token.size(2) * by_token.size(3)});
}

// What is added to the scores of queries [0, queries) and keys [0, keys), of which query 0 sees `first` + 1 and each
// further one another: 0, or -infinity where a query does not see a key.
at::Tensor ScoreMask(int64_t queries, int64_t keys, int64_t first, int64_t window, const at::TensorOptions& options) {
  const at::Tensor newest = at::arange(queries, options.dtype(at::kLong)).add(first).unsqueeze(1),
                   key = at::arange(keys, options.dtype(at::kLong));
  const at::Tensor unseen = window > 0 ? key.gt(newest).logical_or_(key.le(newest.sub(window))) : key.gt(newest);
  return at::zeros({queries, keys}, options).masked_fill_(unseen, -std::numeric_limits<double>::infinity());
}

at::Tensor AttendUnder(const std::optional<at::Tensor>& mask, bool causal, const at::Tensor& q, const at::Tensor& k,
                       const at::Tensor& v) {
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, causal, std::nullopt,
                                          /*enable_gqa=*/q.size(1) != k.size(1));
}

struct QueryBlocks {
  int64_t queries, before;
};

QueryBlocks BlocksOf(int64_t tokens, int64_t window) {
  const models::WindowBlocks blocks =
      models::BlocksOfWindow(static_cast<uint64_t>(tokens), static_cast<uint64_t>(window));
  return {static_cast<int64_t>(blocks.queries), static_cast<int64_t>(blocks.before)};
}

at::Tensor WindowMask(const QueryBlocks& blocks, int64_t window, const at::TensorOptions& options) {
  return ScoreMask(blocks.queries, blocks.before + blocks.queries, blocks.before, window, options);
}

// The last token alone sees all keys of its window.
at::Tensor AttendOne(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int64_t window) {
  const auto last = [&](const at::Tensor& t) { return t.narrow(2, t.size(2) - window, window); };
  return AttendUnder(std::nullopt, /*causal=*/false, q, last(k), last(v));
}

at::Tensor AttendByBlocks(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const KeyWindow& seen) {
  const int64_t queries = q.size(2), before = k.size(2) - queries, group = q.size(1) / k.size(1);
  const at::Tensor mask = seen.mask ? *seen.mask : WindowMask(BlocksOf(queries, seen.window), seen.window, q.options());
  const int64_t block = mask.size(0), reach = mask.size(1) - block;
  const auto repeated = [&](const at::Tensor& t) { return group == 1 ? t : t.repeat_interleave(group, 1); };
  const at::Tensor keys = repeated(k), values = repeated(v);
  std::vector<at::Tensor> parts;
  for (int64_t first = 0; first < queries; first += block) {
    const int64_t n = std::min(block, queries - first);
    // Those before a block may begin before the sequence.
    const int64_t missing = std::max<int64_t>(0, reach - before - first), count = reach - missing + n;
    const auto part = [&](const at::Tensor& t) { return t.narrow(2, before + first + n - count, count); };
    at::Tensor under = mask.narrow(0, 0, n).narrow(1, missing, count);
    if (missing % 16 != 0) under = under.contiguous();  // rows that kernels could not read in place; in sampling only
    parts.push_back(AttendUnder(under, /*causal=*/false, q.narrow(2, first, n), part(keys), part(values)));
  }
  if (parts.size() == 1) return parts[0];
  // Joined by token, as the operator lays out its own results, so that they are rows without another copy.
  for (at::Tensor& part : parts) part = part.transpose(1, 2);
  return at::cat(parts, 1).transpose(1, 2);
}

}  // namespace

KeyWindow MakeKeyWindow(int64_t window, int64_t tokens, const at::TensorOptions& options) {
  if (window == 0 || window >= tokens) return {};
  static auto& masks = *new Shared<at::Tensor>;
  const QueryBlocks blocks = BlocksOf(tokens, window);
  return {window, masks.Get(absl::StrCat(window, " ", blocks.queries, " ", options.device().str(), " ",
                                         static_cast<int>(c10::typeMetaToScalarType(options.dtype()))),
                            [&] { return WindowMask(blocks, window, options); })};
}

at::Tensor AttendCausally(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const DropoutPlace& dropout,
                          const KeyWindow& seen) {
  const int64_t heads = q.size(1), tokens = q.size(2), keys = k.size(2), before = keys - tokens;
  TORCH_CHECK(before >= 0, "attention of ", tokens, " queries to ", keys, " keys");
  if (!dropout.on()) {
    if (seen.window > 0 && seen.window < keys) {
      return tokens == 1 ? AttendOne(q, k, v, seen.window) : AttendByBlocks(q, k, v, seen);
    }
    // The operator's own causal mask counts from the first key. A last query alone sees all of them.
    if (before == 0 || tokens == 1) return AttendUnder(std::nullopt, /*causal=*/tokens > 1, q, k, v);
    return AttendUnder(ScoreMask(tokens, keys, before, 0, q.options()), /*causal=*/false, q, k, v);
  }
  const int64_t dropping = dropout.rows.size;
  TORCH_CHECK(dropping == 0 ? before == 0 : dropping == tokens, "attention of ", tokens, " queries to ", keys,
              " keys, and dropout of the weights of ", dropping == 0 ? keys : dropping);
  const int64_t group = heads / k.size(1);
  const auto repeated = [&](const at::Tensor& t) { return group == 1 ? t : t.repeat_interleave(group, 1); };
  const at::ScalarType wide = WideType(q.scalar_type());
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(3)));
  at::Tensor weights = q.matmul(repeated(k).transpose(2, 3)).to(wide);  // scores, which are gone before factors come
  weights.mul_(scale).add_(ScoreMask(tokens, keys, before, seen.window, q.options().dtype(wide)));
  weights = at::softmax(weights, 3);
  const at::Tensor factors = DropoutFactors(dropout, q.size(0), heads * tokens, keys, q.device());
  return weights.mul(factors.view(weights.sizes()).to(wide)).to(v.scalar_type()).matmul(repeated(v));
}

at::Tensor AttendByOperator(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            std::vector<at::Tensor>* kept, const DropoutPlace& dropout, const KeyWindow& seen) {
  const c10::AutoGradMode mode(kept != nullptr);
  std::vector<at::Tensor> parts;  // leaves: three gradients that no select has to scatter into one
  for (const at::Tensor& t : {q, k, v}) {
    parts.push_back(t.transpose(1, 2).detach().requires_grad_(kept != nullptr));
  }
  parts.push_back(AttendCausally(parts[0], parts[1], parts[2], dropout, seen));
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
