// Grouped queries against LibTorch's operator over repeated keys and values, and its autograd, in float64.
#include "worker/units/cpu_attention.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
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

// Runs of queries among a sequence's keys: of less and more than a block, beginning anywhere, apart or beside each
// other, all tokens, and up to the last key or not.
struct QueryRuns {
  int64_t keys;
  std::vector<models::TokenRun> runs;
};
const std::vector<QueryRuns> kQueryRuns = {{8, {{0, 2}, {6, 2}}},
                                           {8, {{2, 2}, {4, 2}}},
                                           {300, {{0, 75}, {225, 75}}},
                                           {300, {{75, 75}, {150, 75}}},
                                           {270, {{10, 70}, {101, 64}}},
                                           {150, {{3, 1}, {4, 130}, {140, 10}}},
                                           {131, {{0, 131}}},
                                           {40, {{17, 1}}}};

// By PyTorch's formula of softmax attention, each query with its position; and with dropout, times the factors of
// (head, position, key) among those of all tokens.
void ExpectRunsAsTheFormula(const QueryRuns& trial, int64_t window, int64_t shared, double rate, at::ScalarType type) {
  std::vector<at::Tensor> places;
  for (const models::TokenRun& run : trial.runs) {
    const auto begin = static_cast<int64_t>(run.begin);
    places.push_back(at::arange(begin, begin + static_cast<int64_t>(run.size)));
  }
  const at::Tensor position = at::cat(places, 0);
  const int64_t queries = position.size(0);
  const DropoutPlace dropout{.rate = rate, .seed = 8, .step = 2, .place = 3, .first_sample = 1, .first_element = 77};
  const Projection in({2, trial.keys, 4, shared, 6}, type, 1);
  // q as some of the tokens of a wider projection, k and v of all.
  const at::Tensor wide = in.all.index_select(1, position).contiguous(),
                   own_q = wide.narrow(2, 1, 4 * 6).view({2, queries, 4, 6});
  const at::Tensor out = at::empty({2, queries, 24}, type), log_sums = at::empty({2, 4, queries}, WideType(type));
  Attend(own_q, in.k, in.v, out, log_sums, dropout, window, trial.runs);
  const at::Tensor q = Leaf(own_q), k = Leaf(in.k), v = Leaf(in.v), key = at::arange(trial.keys);
  const auto repeated = [&](const at::Tensor& t) { return t.repeat_interleave(4 / shared, 2).transpose(1, 2); };
  at::Tensor seen = key.le(position.unsqueeze(1));
  if (window > 0) seen = seen.logical_and(key.gt(position.unsqueeze(1) - window));
  const at::Tensor scores = q.transpose(1, 2).matmul(repeated(k).transpose(2, 3)) / std::sqrt(6.0);
  at::Tensor weights = scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity()).softmax(3);
  if (rate > 0) {
    const at::Tensor factors = DropoutFactors(dropout, 2, 4 * trial.keys, trial.keys, at::kCPU);
    weights = weights.mul(factors.view({2, 4, trial.keys, trial.keys}).index_select(2, position).to(at::kDouble));
  }
  const at::Tensor right = weights.matmul(repeated(v)).transpose(1, 2).reshape(out.sizes());
  ExpectFloat64(out, right, "out");
  const at::Tensor d_out = NormalNumbers(out.sizes(), type, 2);
  const Projection d({2, trial.keys, 4, shared, 6}, type, 9);
  const at::Tensor d_q = at::empty({2, queries, 4, 6}, type);
  AttendBackward(own_q, in.k, in.v, out, log_sums, d_out, d_q, d.k, d.v, dropout, window, trial.runs);
  const std::vector<at::Tensor> gradients = Gradients(right, d_out.to(at::kDouble), {q, k, v});
  if (window != 1) {  // else to a single key
    ExpectGradient(d_q, gradients[0], "d_q");
    ExpectGradient(d.k, gradients[1], "d_k");
  }
  ExpectGradient(d.v, gradients[2], "d_v");
  const at::Tensor unseen = seen.any(0).logical_not().nonzero().squeeze(1);
  EXPECT_EQ(d.k.index_select(1, unseen).count_nonzero().item<int64_t>(), 0);
  EXPECT_EQ(d.v.index_select(1, unseen).count_nonzero().item<int64_t>(), 0);
}

TEST_P(GroupedAttention, OfRunsOfQueriesEqualsTheFormulaWithTheirPositions) {
  for (const QueryRuns& trial : kQueryRuns) {
    for (const int64_t window : {0, 1, 5, 64, 90}) {
      for (const int64_t shared : {1, 2, 4}) {
        for (const double rate : {0.0, 0.3}) {
          if (rate > 0 && shared == 1) continue;
          SCOPED_TRACE(std::to_string(trial.keys) + " keys, runs from " + std::to_string(trial.runs[0].begin) +
                       ", window " + std::to_string(window) + ", 4 heads on " + std::to_string(shared) +
                       ", dropout of " + std::to_string(rate));
          ExpectRunsAsTheFormula(trial, window, shared, rate, GetParam());
        }
      }
    }
  }
}

TEST_P(GroupedAttention, OfOneRunOfAllQueriesIsTheSame) {
  const Grouping g{2, 150, 4, 2, 8};
  const Projection in(g, GetParam(), 1), d(g, GetParam(), 9);
  const AttentionResult whole = AttendBoth(g, in.q, in.k, in.v, 2, 70);
  const at::Tensor out = at::empty_like(whole.out), log_sums = at::empty_like(whole.log_sums);
  Attend(in.q, in.k, in.v, out, log_sums, {}, 70, {{0, 150}});
  AttendBackward(in.q, in.k, in.v, out, log_sums, NormalNumbers(out.sizes(), GetParam(), 2), d.q, d.k, d.v, {}, 70,
                 {{0, 150}});
  EXPECT_TRUE(out.equal(whole.out) && log_sums.equal(whole.log_sums) && d.all.equal(whole.d.all));
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
  const auto of_runs = [&](const std::vector<models::TokenRun>& runs) {
    Attend(in.q, in.k, in.v, out, log_sums, {}, 0, runs);
  };
  EXPECT_NO_THROW(of_runs({{0, 1}, {1, 2}}));
  EXPECT_THROW(of_runs({{0, 1}, {1, 1}}), c10::Error) << "fewer queries";
  EXPECT_THROW(of_runs({{1, 3}}), c10::Error) << "beyond the keys";
  EXPECT_THROW(of_runs({{1, 2}, {0, 1}}), c10::Error) << "in another order";
  EXPECT_THROW(Attend(in.q, in.k.to(at::kDouble), in.v, out, log_sums), c10::Error);
}

}  // namespace
}  // namespace muster::units
