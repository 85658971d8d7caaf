// Attention within a window, by blocks of queries, against LibTorch's operator under a mask of tokens squared.
#include "worker/units/operator_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

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
  const Inputs in(kTokens, 4, 2, at::kDouble);
  const KeyWindow seen = MakeKeyWindow(GetParam(), kTokens, in.q.options());
  ExpectFloat64(AttendCausally(in.q, in.k, in.v, {.rate = 1e-12, .seed = 1}, seen), UnderAMask(in, GetParam()), "out");
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
