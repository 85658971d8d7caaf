// Grouped queries against LibTorch's operator over repeated keys and values, and its autograd, in float64.
#include "worker/units/cpu_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "worker/units/autograd.h"
#include "worker/units/float64_test.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

struct Grouping {
  int64_t sequences, tokens, heads, key_value_heads, head;

  std::string Name() const {
    return std::to_string(sequences) + " x " + std::to_string(tokens) + " tokens, " + std::to_string(heads) +
           " heads on " + std::to_string(key_value_heads) + " of " + std::to_string(head);
  }
};

// One token, less than a block of queries, exactly one, and more than two.
const std::vector<Grouping> kGroupings = {{1, 1, 1, 1, 1},   {2, 1, 4, 2, 5},   {3, 17, 2, 2, 6},   {1, 64, 4, 4, 16},
                                          {2, 65, 4, 2, 12}, {2, 150, 4, 1, 8}, {1, 131, 2, 1, 33}, {1, 66, 2, 2, 64}};

// q, k and v, or their gradients, as slices of one projection with something beside them.
struct Projection {
  at::Tensor all, q, k, v;

  Projection(const Grouping& g, at::ScalarType type, int seed)
      : all(NormalNumbers({g.sequences, g.tokens, (g.heads + 2 * g.key_value_heads) * g.head + 3}, type, seed)) {
    const auto slice = [&](int64_t first, int64_t heads) {
      return all.narrow(2, 1 + first * g.head, heads * g.head).view({g.sequences, g.tokens, heads, g.head});
    };
    q = slice(0, g.heads);
    k = slice(g.heads, g.key_value_heads);
    v = slice(g.heads + g.key_value_heads, g.key_value_heads);
  }
};

struct AttentionResult {
  at::Tensor out, log_sums;
  Projection d;
};

// From a gradient of out with numbers by `seed`.
AttentionResult AttendBoth(const Grouping& g, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, int seed,
                           int64_t window = 0) {
  const at::ScalarType type = q.scalar_type();
  AttentionResult r{at::empty({g.sequences, g.tokens, g.heads * g.head}, type),
                    at::empty({g.sequences, g.heads, g.tokens}, WideType(type)), Projection(g, type, 9)};
  Attend(q, k, v, r.out, r.log_sums, {}, window);
  AttendBackward(q, k, v, r.out, r.log_sums, NormalNumbers(r.out.sizes(), type, seed), r.d.q, r.d.k, r.d.v, {}, window);
  return r;
}

// The backward starts from out, which bf16 or fp16 has rounded; its largest error is a few of those.
void ExpectGradient(const at::Tensor& out, const at::Tensor& right, const char* what) {
  if (WideType(out.scalar_type()) == out.scalar_type()) return ExpectFloat64(out, right, what);
  const double largest = right.abs().max().item<double>(),
               off = (out.to(at::kDouble) - right).abs().max().item<double>();
  EXPECT_LE(off, 0.02 * largest + 1e-6) << what;
}

class GroupedAttention : public testing::TestWithParam<at::ScalarType> {
 protected:
  GroupedAttention() { at::set_num_threads(1); }  // threads that wait for each other are slow on a busy machine
};
INSTANTIATE_TEST_SUITE_P(Types, GroupedAttention, testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble));

TEST_P(GroupedAttention, EqualsTheOperatorOverRepeatedKeys) {
  for (const Grouping& g : kGroupings) {
    SCOPED_TRACE(g.Name());
    const Projection in(g, GetParam(), 1);
    const AttentionResult ours = AttendBoth(g, in.q, in.k, in.v, 2);
    const at::Tensor q = Leaf(in.q), k = Leaf(in.k), v = Leaf(in.v);
    const auto repeated = [&](const at::Tensor& t) {
      return t.repeat_interleave(g.heads / g.key_value_heads, 2).transpose(1, 2);
    };
    const at::Tensor right =
        at::scaled_dot_product_attention(q.transpose(1, 2), repeated(k), repeated(v), {}, 0.0, /*is_causal=*/true)
            .transpose(1, 2)
            .reshape(ours.out.sizes());
    ExpectFloat64(ours.out, right, "out");
    const at::Tensor d_out = NormalNumbers(ours.out.sizes(), GetParam(), 2).to(at::kDouble);
    const std::vector<at::Tensor> gradients = Gradients(right, d_out, {q, k, v});
    if (g.tokens > 1) {  // to a single key the weight is 1, whatever q and k are
      ExpectGradient(ours.d.q, gradients[0], "d_q");
      ExpectGradient(ours.d.k, gradients[1], "d_k");
    }
    ExpectGradient(ours.d.v, gradients[2], "d_v");
    const Projection before(g, GetParam(), 9);
    const int64_t last = before.all.size(2) - 2;
    EXPECT_TRUE(ours.d.all.narrow(2, 0, 1).equal(before.all.narrow(2, 0, 1))) << "what lies beside the slices";
    EXPECT_TRUE(ours.d.all.narrow(2, last, 2).equal(before.all.narrow(2, last, 2))) << "what lies beside the slices";
  }
}

// A window of the query's own key, of less and more than a block of queries, of all keys but one, of all, and of more.
TEST_P(GroupedAttention, WithinAWindowEqualsTheOperatorUnderAMask) {
  for (const Grouping& g : kGroupings) {
    for (const int64_t window : {int64_t{1}, int64_t{2}, int64_t{63}, int64_t{64}, int64_t{70}, g.tokens - 1, g.tokens,
                                 g.tokens + 9, int64_t{1} << 32}) {
      if (window < 1) continue;
      SCOPED_TRACE(g.Name() + ", window " + std::to_string(window));
      const Projection in(g, GetParam(), 1);
      const AttentionResult ours = AttendBoth(g, in.q, in.k, in.v, 2, window);
      const at::Tensor q = Leaf(in.q), k = Leaf(in.k), v = Leaf(in.v);
      const auto repeated = [&](const at::Tensor& t) {
        return t.repeat_interleave(g.heads / g.key_value_heads, 2).transpose(1, 2);
      };
      // transformers' sliding_window_causal_mask_function: key > query - window, and key <= query.
      const at::Tensor at = at::arange(g.tokens), query = at.unsqueeze(1);
      const at::Tensor seen = at.gt(query - window).logical_and(at.le(query));
      const at::Tensor right = at::scaled_dot_product_attention(q.transpose(1, 2), repeated(k), repeated(v), seen)
                                   .transpose(1, 2)
                                   .reshape(ours.out.sizes());
      ExpectFloat64(ours.out, right, "out");
      const at::Tensor d_out = NormalNumbers(ours.out.sizes(), GetParam(), 2).to(at::kDouble);
      const std::vector<at::Tensor> gradients = Gradients(right, d_out, {q, k, v});
      if (g.tokens > 1 && window > 1) {  // else to a single key
        ExpectGradient(ours.d.q, gradients[0], "d_q");
        ExpectGradient(ours.d.k, gradients[1], "d_k");
      }
      ExpectGradient(ours.d.v, gradients[2], "d_v");
      if (window < g.tokens) continue;
      const AttentionResult whole = AttendBoth(g, in.q, in.k, in.v, 2);
      EXPECT_TRUE(ours.out.equal(whole.out) && ours.d.all.equal(whole.d.all)) << "a window of all tokens is none";
    }
  }
}

// How far apart tokens lie changes no bit: slices, q k v side by side, and tensors of their own.
TEST_P(GroupedAttention, TakesViews) {
  for (Grouping g : kGroupings) {
    g.key_value_heads = g.heads;
    SCOPED_TRACE(g.Name());
    const at::Tensor qkv = NormalNumbers({g.sequences, g.tokens, 3, g.heads, g.head}, GetParam(), 1);
    const auto part = [&](int64_t i) { return qkv.select(2, i); };
    const AttentionResult beside = AttendBoth(g, part(0), part(1), part(2), 2);
    const AttentionResult apart = AttendBoth(g, part(0).contiguous(), part(1).contiguous(), part(2).contiguous(), 2);
    EXPECT_TRUE(beside.out.equal(apart.out) && beside.log_sums.equal(apart.log_sums));
    EXPECT_TRUE(beside.d.all.equal(apart.d.all));
  }
}

TEST_P(GroupedAttention, GivesTheSameBitsOnAnyNumberOfThreads) {
  for (const Grouping& g : kGroupings) {
    SCOPED_TRACE(g.Name());
    const Projection in(g, GetParam(), 1);
    at::set_num_threads(1);
    const AttentionResult one = AttendBoth(g, in.q, in.k, in.v, 2);
    at::set_num_threads(2);
    const AttentionResult two = AttendBoth(g, in.q, in.k, in.v, 2);
    EXPECT_TRUE(one.out.equal(two.out) && one.log_sums.equal(two.log_sums) && one.d.all.equal(two.d.all));
  }
  at::set_num_threads(1);
}

TEST(GroupedAttentionErrors, RefusesWhatItWouldMisread) {
  const Grouping g{2, 3, 4, 2, 6};
  const Projection in(g, at::kFloat, 1);
  const at::Tensor out = at::empty({2, 3, 24}), log_sums = at::empty({2, 4, 3});
  Attend(in.q, in.k, in.v, out, log_sums);
  EXPECT_THROW(Attend(in.q.narrow(2, 0, 3), in.k, in.v, out, log_sums), c10::Error) << "3 heads on 2";
  EXPECT_THROW(Attend(in.q, in.k, in.v.narrow(1, 0, 2), out, log_sums), c10::Error) << "fewer tokens";
  const auto shorter = [](const at::Tensor& t) { return t.narrow(1, 0, 2); };
  EXPECT_THROW(Attend(shorter(in.q), shorter(in.k), shorter(in.v), at::empty({2, 2, 24}), log_sums), c10::Error)
      << "tokens between two sequences";
  const at::Tensor by_head = in.q.transpose(1, 2).contiguous().transpose(1, 2);
  EXPECT_THROW(Attend(by_head, in.k, in.v, out, log_sums), c10::Error) << "heads that do not lie side by side";
  EXPECT_THROW(Attend(in.q, in.k.to(at::kDouble), in.v, out, log_sums), c10::Error);
}

}  // namespace
}  // namespace muster::units
