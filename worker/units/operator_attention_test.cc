// Attention within a window, by blocks of queries, against LibTorch's operator under a mask of tokens squared; and with
// dropout, against the formula.
#include "worker/units/operator_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "worker/units/autograd.h"
#include "worker/units/float64_test.h"

namespace muster::units {
namespace {

constexpr int64_t kTokens = 300;  // more than two of the narrowest blocks

struct Inputs {
  at::Tensor q, k, v;
  // Of the last `queries` of kTokens tokens.
  Inputs(int64_t queries, int64_t heads, int64_t key_value_heads, at::ScalarType type)
      : q(NormalNumbers({2, heads, queries, 6}, type, 1).requires_grad_(true)),
        k(NormalNumbers({2, key_value_heads, kTokens, 6}, type, 2).requires_grad_(true)),
        v(NormalNumbers({2, key_value_heads, kTokens, 6}, type, 3).requires_grad_(true)) {}
};

// transformers' sliding_window_causal_mask_function: key > query - window, and key <= query.
at::Tensor UnderAMask(const Inputs& in, int64_t window) {
  const int64_t group = in.q.size(1) / in.k.size(1), queries = in.q.size(2);
  const at::Tensor key = at::arange(kTokens), query = key.narrow(0, kTokens - queries, queries).unsqueeze(1);
  const at::Tensor seen = key.gt(query - window).logical_and(key.le(query));
  return at::scaled_dot_product_attention(in.q, in.k.repeat_interleave(group, 1), in.v.repeat_interleave(group, 1),
                                          seen);
}

class WindowedAttention : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Windows, WindowedAttention, testing::Values(1, 2, 5, 127, 128, 129, 200, 299, 300, 301));

TEST_P(WindowedAttention, EqualsTheOperatorUnderAMask) {
  const int64_t window = GetParam();
  for (const auto& [heads, shared] : {std::pair(2, 2), std::pair(4, 2), std::pair(3, 1)}) {
    for (const int64_t queries : {kTokens, int64_t{1}, int64_t{2}, int64_t{150}, kTokens - 1}) {
      SCOPED_TRACE(std::to_string(heads) + " heads on " + std::to_string(shared) + ", " + std::to_string(queries));
      const Inputs in(queries, heads, shared, at::kDouble);
      const at::Tensor right = UnderAMask(in, window);
      const at::Tensor d_out = NormalNumbers(right.sizes(), at::kDouble, 4);
      const std::vector<at::Tensor> gradients = Gradients(right, d_out, {in.q, in.k, in.v});
      for (const KeyWindow& seen : {MakeKeyWindow(window, kTokens, d_out.options()), KeyWindow{.window = window}}) {
        const at::Tensor ours = AttendCausally(in.q, in.k, in.v, {}, seen);
        ExpectFloat64(ours, right, "out");
        const std::vector<at::Tensor> own = Gradients(ours, d_out, {in.q, in.k, in.v});
        if (window > 1) {  // the weight of a single key is 1
          ExpectFloat64(own[0], gradients[0], "d_q");
          ExpectFloat64(own[1], gradients[1], "d_k");
        }
        ExpectFloat64(own[2], gradients[2], "d_v");
      }
    }
  }
}

// With dropout by products: of a rate so small that nothing is dropped, the same numbers.
TEST_P(WindowedAttention, EqualsItselfByProducts) {
  for (const int64_t queries : {kTokens, int64_t{1}, int64_t{150}}) {
    const Inputs in(queries, 4, 2, at::kDouble);
    const KeyWindow seen = MakeKeyWindow(GetParam(), kTokens, in.q.options());
    DropoutPlace dropout{.rate = 1e-12, .seed = 1};
    dropout.rows = {.begin = kTokens - queries, .size = queries, .apart = kTokens};
    ExpectFloat64(AttendCausally(in.q, in.k, in.v, dropout, seen), UnderAMask(in, GetParam()), "out");
  }
}

// As the formula says: softmax over what is seen, times the factors of (head, query, key) of all tokens, times values.
at::Tensor ByTheFormula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& factors,
                        int64_t window) {
  const int64_t group = q.size(1) / k.size(1);
  const at::Tensor key = at::arange(kTokens), query = key.unsqueeze(1);
  at::Tensor seen = key.le(query);
  if (window > 0) seen = seen.logical_and(key.gt(query - window));
  const at::Tensor scores = q.matmul(k.repeat_interleave(group, 1).transpose(2, 3)) / std::sqrt(6.0);
  return scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity())
      .softmax(3)
      .mul(factors)
      .matmul(v.repeat_interleave(group, 1));
}

// Blocks of queries, each to the keys up to its last one: with the dropout of all, their outputs are rows of all
// outputs, and their gradients of keys and values add up.
TEST(DroppingAttention, OfBlocksOfQueriesIsThatOfAll) {
  const DropoutPlace place{.rate = 0.3, .seed = 7, .step = 3, .place = 4, .first_sample = 2, .first_element = 5};
  for (const int64_t window : {0, 1, 40, 200}) {
    for (const int64_t shared : {4, 2, 1}) {
      SCOPED_TRACE(std::to_string(shared) + " heads of keys, window " + std::to_string(window));
      const Inputs in(kTokens, 4, shared, at::kDouble);
      const at::Tensor factors =
          DropoutFactors(place, 2, 4 * kTokens, kTokens, at::kCPU).view({2, 4, kTokens, kTokens}).to(at::kDouble);
      const at::Tensor right = ByTheFormula(in.q, in.k, in.v, factors, window);
      const at::Tensor d_out = NormalNumbers(right.sizes(), at::kDouble, 4);
      const std::vector<at::Tensor> gradients = Gradients(right, d_out, {in.q, in.k, in.v});
      ExpectFloat64(AttendCausally(in.q, in.k, in.v, place, {.window = window}), right, "all at once");
      at::Tensor d_k = at::zeros_like(in.k), d_v = at::zeros_like(in.v);
      for (const auto& [first, queries] : {std::pair<int64_t, int64_t>(0, 1), {1, 128}, {129, 150}, {279, 21}}) {
        const int64_t keys = first + queries;
        DropoutPlace dropout = place;
        dropout.rows = {.begin = first, .size = queries, .apart = kTokens, .width = kTokens};
        const auto part = [&](const at::Tensor& t, int64_t from, int64_t n) {
          return t.detach().narrow(2, from, n).requires_grad_(true);
        };
        const at::Tensor q = part(in.q, first, queries), k = part(in.k, 0, keys), v = part(in.v, 0, keys);
        const at::Tensor out = AttendCausally(q, k, v, dropout, {.window = window});
        ExpectFloat64(out, right.narrow(2, first, queries), "out");
        const std::vector<at::Tensor> own = Gradients(out, d_out.narrow(2, first, queries), {q, k, v});
        if (window != 1 && first > 0) ExpectFloat64(own[0], gradients[0].narrow(2, first, queries), "d_q");
        d_k.narrow(2, 0, keys).add_(own[1]), d_v.narrow(2, 0, keys).add_(own[2]);
      }
      if (window != 1) ExpectFloat64(d_k, gradients[1], "d_k");  // else the weight of a single key is 1
      ExpectFloat64(d_v, gradients[2], "d_v");
    }
  }
}

TEST(DroppingAttention, OfSomeQueriesNeedsToKnowWhich) {
  const Inputs in(150, 2, 2, at::kDouble);
  DropoutPlace dropout{.rate = 0.3, .seed = 7};
  EXPECT_THROW(AttendCausally(in.q, in.k, in.v, dropout), c10::Error);
  dropout.rows = {.begin = 151, .size = 149, .apart = kTokens, .width = kTokens};
  EXPECT_THROW(AttendCausally(in.q, in.k, in.v, dropout), c10::Error) << "one fewer";
  dropout.rows = {.begin = 150, .size = 150, .apart = kTokens, .width = kTokens};
  EXPECT_NO_THROW(AttendCausally(in.q, in.k, in.v, dropout));
  EXPECT_THROW(AttendCausally(in.k, in.q, in.q, {}), c10::Error) << "fewer keys than queries";
}

TEST(WindowedAttentionMask, IsOneForAllWhoAskForTheSameAndNotOfTokensSquared) {
  const at::TensorOptions options = at::dtype(at::kFloat);
  const KeyWindow one = MakeKeyWindow(200, 4096, options), another = MakeKeyWindow(200, 4096, options);
  EXPECT_EQ(one.mask, another.mask);
  EXPECT_EQ(one.mask->sizes(), at::IntArrayRef({208, 208 + 208}));
  EXPECT_NE(MakeKeyWindow(199, 4096, options).mask, one.mask);
  EXPECT_EQ(MakeKeyWindow(1, 4096, options).mask->sizes(), at::IntArrayRef({128, 128}));
  EXPECT_EQ(MakeKeyWindow(18, 4096, options).mask->sizes(), at::IntArrayRef({128, 32 + 128}));
  EXPECT_EQ(MakeKeyWindow(4096, 4096, options).window, 0) << "as wide as the sequence";
  EXPECT_EQ(MakeKeyWindow(0, 4096, options).mask, nullptr);
}

}  // namespace
}  // namespace muster::units
