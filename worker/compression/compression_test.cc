#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/collectives/threads.h"
#include "worker/compression/compressed_sum.h"
#include "worker/compression/device_sparse.h"
#include "worker/compression/select.h"
#include "worker/compression/sparse_code.h"
#include "worker/compression/timed_sum.h"

namespace muster::compression {
namespace {

using ::testing::ElementsAre;

// Vigna 2013, "Quasi-succinct indices", figure 1: 5, 8, 8, 15, 32 below 36 have two lower bits each, 01 00 00 11 00,
// and upper halves 1, 2, 2, 3, 8, which set the bits 1, 2 + 1, 2 + 2, 3 + 3 and 8 + 4.
TEST(SparseCode, IsThatOfThePaper) {
  const SparseCode code(36, 5, SENT_VALUES_FP32);
  ASSERT_EQ(code.words(), 1 + 1 + 1 + 5);
  Sparse sparse{{5, 8, 8, 15, 32}, {1, -2, 3, 0.5, 7}};
  std::vector<uint32_t> message(8);
  code.Encode(sparse, absl::MakeSpan(message));
  EXPECT_THAT(message,
              ElementsAre(5, 0b11000001, 0b1000001011010, 0x3f800000, 0xc0000000, 0x40400000, 0x3f000000, 0x40e00000));
  Sparse decoded;
  code.Decode(message, decoded);
  EXPECT_EQ(decoded.indices, sparse.indices);
  EXPECT_EQ(decoded.values, sparse.values);
}

TEST(SparseCode, RoundsValuesAsItSays) {
  // 1.00390625 is halfway between two neighbors of bf16, 1 and 1.0078125; so is 1.01171875, of 1.0078125 and 1.015625.
  Sparse sparse{{0, 3, 4}, {1.00390625f, 1.01171875f, -1e30f}};
  const SparseCode bf16(5, 3, SENT_VALUES_BF16);
  std::vector<uint32_t> message(static_cast<size_t>(bf16.words()));
  bf16.Encode(sparse, absl::MakeSpan(message));
  EXPECT_EQ(sparse.values[0], 1.0f);
  EXPECT_EQ(sparse.values[1], 1.015625f);
  EXPECT_NEAR(sparse.values[2], -1e30f, 1e30f / 256);
  Sparse decoded;
  bf16.Decode(message, decoded);
  EXPECT_EQ(decoded.values, sparse.values);

  // 257 values: the last one has a scale of its own.
  Sparse many;
  for (int i = 0; i < 257; ++i) many.indices.push_back(2 * i), many.values.push_back(static_cast<float>(i % 128));
  many.values[256] = 1e-3f;
  const SparseCode int8(600, 300, SENT_VALUES_INT8);
  message.assign(static_cast<size_t>(int8.words()), 0);
  int8.Encode(many, absl::MakeSpan(message));
  for (int i = 0; i < 256; ++i) EXPECT_EQ(many.values[static_cast<size_t>(i)], i % 128) << "scale 1";
  EXPECT_NEAR(many.values[256], 1e-3f, 1e-9f);
  int8.Decode(message, decoded);
  EXPECT_EQ(decoded.values, many.values);
  EXPECT_EQ(decoded.indices, many.indices);
}

// The operators of GPUs make the same message, but for the word after it, of the same elements, and read it again.
void ExpectTheSameOfOperators(int64_t elements, int64_t most, SentValues values, const Sparse& sparse,
                              std::vector<uint32_t> message) {
  at::Tensor indices = at::full({most}, elements, at::kLong), sent = at::zeros({most}, at::kFloat);
  for (size_t i = 0; i < sparse.indices.size(); ++i) {
    indices.mutable_data_ptr<int64_t>()[i] = sparse.indices[i];
    sent.mutable_data_ptr<float>()[i] = sparse.values[i];
  }
  message.pop_back();
  const DeviceSparseCode code(elements, most, values, at::kCPU);
  const at::Tensor own = at::full({code.words()}, 0x1p100, at::kFloat);
  const at::Tensor rounded = code.Encode(indices, sent, own);
  const auto* const words = static_cast<const uint32_t*>(own.const_data_ptr());
  ASSERT_EQ(std::vector<uint32_t>(words, words + own.numel()), message) << elements << " " << most;
  EXPECT_TRUE(at::equal(code.DecodeIndices(own), indices));
  EXPECT_TRUE(at::equal(code.DecodeValues(own), rounded));
}

TEST(SparseCode, AnyIndicesComeBack) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const int elements = 1 + static_cast<int>(random() % 5000), most = 1 + static_cast<int>(random() % elements);
    const int count = static_cast<int>(random() % (most + 1));
    std::vector<int32_t> all(static_cast<size_t>(elements));
    std::iota(all.begin(), all.end(), 0);
    std::shuffle(all.begin(), all.end(), random);
    Sparse sparse;
    sparse.indices.assign(all.begin(), all.begin() + count);
    std::sort(sparse.indices.begin(), sparse.indices.end());
    for (const int32_t i : sparse.indices) sparse.values.push_back(static_cast<float>(i));
    for (const SentValues values : {SENT_VALUES_FP32, SENT_VALUES_BF16, SENT_VALUES_INT8}) {
      const SparseCode code(elements, most, values);
      std::vector<uint32_t> message(static_cast<size_t>(code.words()) + 1, 0xabcdabcd);
      code.Encode(sparse, absl::MakeSpan(message).first(message.size() - 1));
      EXPECT_EQ(message.back(), 0xabcdabcd) << "written behind the message";
      Sparse decoded;
      code.Decode(absl::MakeSpan(message).first(message.size() - 1), decoded);
      ASSERT_EQ(decoded.indices, sparse.indices) << elements << " " << most;
      ASSERT_EQ(decoded.values, sparse.values);
      Compression compression;
      compression.mutable_top_k()->set_ratio(static_cast<double>(most) / elements);
      compression.mutable_top_k()->set_values(values);
      EXPECT_EQ(strategies::BytesOf(compression, elements, {}, 2).first, 4u * static_cast<uint64_t>(code.words()))
          << "planned";
      if (trial < 300) ExpectTheSameOfOperators(elements, most, values, sparse, message);
    }
  }
}

// The first `most` in a stable sort by falling magnitude.
std::vector<int32_t> Largest(const std::vector<float>& values, int64_t most) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  const auto magnitude = [&](int32_t i) {
    const float value = std::abs(values[static_cast<size_t>(i)]);
    return std::isnan(value) ? std::numeric_limits<double>::infinity() : std::min<double>(value, 1e300);
  };
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return magnitude(a) > magnitude(b); });
  order.resize(static_cast<size_t>(most));
  std::sort(order.begin(), order.end());
  return order;
}

TEST(Selector, ExactIsWhatAStableSortGives) {
  std::mt19937 random(2);
  Selector selector;
  std::vector<int32_t> indices;
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> values(1 + random() % (trial % 10 == 0 ? 20000 : 400));
    // Few values, so that many are equal; and some that most samples miss.
    const int kinds = 1 + static_cast<int>(random() % 50);
    for (float& v : values) v = static_cast<float>(static_cast<int>(random() % kinds) - kinds / 2);
    if (trial % 3 == 0) values[random() % values.size()] = 1 << 20;
    if (trial % 7 == 0) values[random() % values.size()] = std::numeric_limits<float>::quiet_NaN();
    const auto most = static_cast<int64_t>(1 + random() % values.size());
    // Sums of small whole numbers are exact.
    std::vector<float> added(values.size()), sums = values;
    for (size_t i = 0; i < added.size(); ++i) added[i] = static_cast<float>(i % 3), sums[i] -= added[i];
    selector.AddAndFind(added, absl::MakeSpan(sums), most, static_cast<uint64_t>(trial), indices);
    ASSERT_EQ(indices, Largest(values, most)) << values.size() << " " << most;
    for (size_t i = 0; i < sums.size(); ++i) ASSERT_TRUE(sums[i] == values[i] || std::isnan(values[i]));
    std::fill(added.begin(), added.end(), 0.0f);
    selector.AddAndSample(added, absl::MakeSpan(sums), most, static_cast<uint64_t>(trial), indices);
    ASSERT_LE(static_cast<int64_t>(indices.size()), most);
    ASSERT_GE(indices.size(), 1u);
    ASSERT_TRUE(std::is_sorted(indices.begin(), indices.end()));
  }
}

TEST(Selector, OperatorsOfGpusFindTheSame) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  Selector selector;
  std::vector<int32_t> indices;
  int fewer = 0;
  for (uint64_t trial = 0; trial < 300; ++trial) {
    std::vector<float> values(1 + random() % (trial % 10 == 0 ? 200'000 : 3000));
    for (float& v : values) v = normal(random);
    if (trial % 3 == 0) values[random() % values.size()] = std::numeric_limits<float>::quiet_NaN();
    if (trial % 4 == 0) std::fill(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), 3.0f);
    const auto elements = static_cast<int64_t>(values.size()), most = static_cast<int64_t>(1 + random() % elements);
    if (trial % 4 == 0 && most < elements / 7) continue;  // of so many equal ones the first count
    const at::Tensor sums = at::tensor(values);
    const std::vector<float> added(values.size());
    selector.AddAndFind(added, absl::MakeSpan(values), most, trial, indices);
    ASSERT_TRUE(at::equal(FindLargest(sums, most), at::tensor(indices).to(at::kLong))) << elements << " " << most;
    selector.AddAndSample(added, absl::MakeSpan(values), most, trial, indices);
    fewer += static_cast<int64_t>(indices.size()) < most ? 1 : 0;
    indices.resize(static_cast<size_t>(most), static_cast<int32_t>(elements));
    ASSERT_TRUE(at::equal(FindSampled(sums, most, trial), at::tensor(indices).to(at::kLong)))
        << elements << " " << most;
  }
  EXPECT_GT(fewer, 10);
  // Where a sample misleads by more than a factor of four: the first of those that reach the threshold.
  EXPECT_TRUE(at::equal(FindSampled(at::ones({100}), 5, 0), at::arange(5)));
}

TEST(Selector, ASampleFindsAboutAsMany) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(400'000);
  for (float& v : values) v = normal(random);
  Selector selector;
  std::vector<int32_t> indices;
  for (uint64_t step = 0; step < 20; ++step) {
    selector.AddAndSample(std::vector<float>(values.size()), absl::MakeSpan(values), 4000, step, indices);
    EXPECT_GT(indices.size(), 2500u);
    const std::vector<int32_t> largest = Largest(values, 4000);
    for (const int32_t i : indices) EXPECT_TRUE(std::binary_search(largest.begin(), largest.end(), i));
  }
}

// The same on every rank of a group of threads, each with its own.
using Gradients = std::function<at::Tensor(int rank, uint64_t step)>;
struct AfterStep {
  at::Tensor sum;
  std::vector<StateTensor> state;
};
struct Rank {
  std::vector<AfterStep> steps;
};
std::vector<Rank> SumOn(int ranks, uint64_t steps, const Options& options, const Gradients& gradients) {
  const std::vector<std::unique_ptr<collectives::Group>> groups = collectives::MakeThreads(ranks, absl::Seconds(30));
  std::vector<Rank> of(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Options own = options;
      own.group = groups[static_cast<size_t>(rank)].get();
      const std::unique_ptr<CompressedSum> sum = MakeCompressedSum(own);
      for (uint64_t step = 0; step < steps; ++step) {
        const at::Tensor values = gradients(rank, step).clone();
        for (auto& work : sum->Begin(values, step)) ASSERT_TRUE(work->Wait().ok());
        for (auto& work : sum->Continue()) ASSERT_TRUE(work->Wait().ok());
        sum->End();
        AfterStep& after = of[static_cast<size_t>(rank)].steps.emplace_back(AfterStep{values.clone(), {}});
        for (const StateTensor& state : sum->State()) {
          after.state.push_back({state.name, state.values.clone(), state.part});
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return of;
}

at::Tensor StateOf(const AfterStep& after, const std::string& name) {
  for (const StateTensor& state : after.state) {
    if (state.name == name) return state.values;
  }
  ADD_FAILURE() << "no state " << name;
  return {};
}

Gradients Random(int64_t elements) {
  return [elements](int rank, uint64_t step) {
    std::mt19937 random(static_cast<uint32_t>(1000 * rank + static_cast<int>(step)));
    std::normal_distribution<float> normal;
    const at::Tensor values = at::zeros({elements}, at::kFloat);
    for (int64_t i = 0; i < elements; ++i) values.mutable_data_ptr<float>()[i] = normal(random);
    return values;
  };
}

// Checkpoints of all ranks are laid out by the names, whatever a rank sums.
TEST(Compression, KeepsWhatItsNamesSay) {
  const auto compression = [](const std::function<void(Compression&)>& set) {
    Compression compression;
    set(compression);
    Optimizer optimizer;
    optimizer.mutable_sgd();
    strategies::FillDefaults(optimizer, compression);
    return compression;
  };
  using Names = std::set<std::string>;
  for (const auto& [of, names] : std::vector<std::pair<Compression, Names>>{
           {compression([](Compression& c) { c.mutable_int8(); }), {"residual"}},
           {compression([](Compression& c) { c.mutable_top_k()->set_momentum_correction(false); }), {"residual"}},
           {compression([](Compression& c) { c.mutable_top_k()->set_momentum_correction(true); }),
            {"momentum", "residual"}},
           {compression([](Compression& c) { c.mutable_power_sgd(); }), {"power_sgd_q", "residual"}}}) {
    const std::vector<std::string> listed = strategies::StateNames(of);
    EXPECT_EQ(Names(listed.begin(), listed.end()), names) << strategies::NameOf(of);
    const Options options{.compression = of, .elements = 4096, .parts = {{0, {64, 64}}}};
    Names kept;
    for (const Rank& rank : SumOn(2, 1, options, Random(4096))) {
      for (const StateTensor& state : rank.steps.back().state) kept.insert(state.name);
    }
    EXPECT_EQ(kept, names) << strategies::NameOf(of);
  }
  EXPECT_TRUE(strategies::StateNames({}).empty());
}

Options TopKOptions(int64_t elements, double ratio, SentValues values = SENT_VALUES_FP32) {
  Options options{.elements = elements};
  TopK& top_k = *options.compression.mutable_top_k();
  top_k.set_ratio(ratio), top_k.set_selection(SELECTION_EXACT), top_k.set_values(values);
  return options;
}
Options Int8Options(int64_t elements, uint32_t block) {
  Options options{.elements = elements};
  options.compression.mutable_int8()->set_block(block);
  return options;
}
Options PowerOptions(int64_t elements, std::vector<strategies::GradientPart> parts, uint32_t rank) {
  Options options{.elements = elements, .parts = std::move(parts)};
  options.compression.mutable_power_sgd()->set_rank(rank);
  return options;
}

std::vector<std::pair<std::string, Options>> AllKinds(int64_t elements) {
  std::vector<std::pair<std::string, Options>> all;
  for (const bool portable : {false, true}) {
    for (const SentValues values : {SENT_VALUES_FP32, SENT_VALUES_BF16, SENT_VALUES_INT8}) {
      Options options = TopKOptions(elements, 0.05, values);
      options.portable = portable;
      all.emplace_back(absl::StrCat("top_k ", values, portable ? " portable" : ""), options);
    }
  }
  for (const bool portable : {false, true}) {
    Options sampled = TopKOptions(elements, 0.05);
    sampled.compression.mutable_top_k()->set_selection(SELECTION_SAMPLED);
    sampled.portable = portable;
    all.emplace_back(portable ? "top_k sampled portable" : "top_k sampled", sampled);
  }
  for (const bool portable : {false, true}) {
    Options options = Int8Options(elements, 32);
    options.portable = portable;
    all.emplace_back(portable ? "int8 portable" : "int8", options);
  }
  const int64_t rows = 12, columns = 10;
  std::vector<strategies::GradientPart> parts;
  if (elements >= 130) parts = {{3, {rows, columns}}, {123, {5}}};
  all.emplace_back("power_sgd", PowerOptions(elements, parts, 2));
  return all;
}

// Nothing is lost: over all steps, what was applied and what the ranks still have is what their gradients were.
TEST(CompressedSum, AppliedAndKeptAreAllGradients) {
  for (const int64_t elements : {1, 7, 130, 5000}) {
    for (const auto& [name, options] : AllKinds(elements)) {
      SCOPED_TRACE(absl::StrCat(name, " of ", elements));
      constexpr uint64_t kSteps = 6;
      const Gradients gradients = Random(elements);
      const std::vector<Rank> ranks = SumOn(3, kSteps, options, gradients);
      at::Tensor given = at::zeros({elements}, at::kDouble), had = at::zeros({elements}, at::kDouble);
      for (uint64_t step = 0; step < kSteps; ++step) {
        for (int rank = 0; rank < 3; ++rank) given.add_(gradients(rank, step));
        had.add_(ranks[0].steps[step].sum);
        for (const Rank& rank : ranks) {
          EXPECT_TRUE(at::equal(rank.steps[step].sum, ranks[0].steps[step].sum)) << "ranks differ in step " << step;
        }
        at::Tensor all = had.clone();
        for (const Rank& rank : ranks) all.add_(StateOf(rank.steps[step], "residual"));
        EXPECT_LT(all.sub(given).abs().max().item<double>(), 2e-5) << "after step " << step;
      }
      if (elements == 5000) {
        EXPECT_GT(StateOf(ranks[1].steps.back(), "residual").abs().max().item<float>(), 1e-4) << "something is kept";
      }
    }
  }
}

// A rank's part of a small range can be empty.
TEST(CompressedSum, SumsNothing) {
  for (const auto& [name, options] : AllKinds(0)) {
    const std::vector<Rank> ranks = SumOn(2, 2, options, Random(0));
    EXPECT_EQ(ranks[1].steps.back().sum.numel(), 0) << name;
  }
}

TEST(CompressedSum, RunsAgainToTheSameBits) {
  for (const auto& [name, options] : AllKinds(5000)) {
    const std::vector<Rank> a = SumOn(2, 4, options, Random(5000)), b = SumOn(2, 4, options, Random(5000));
    EXPECT_TRUE(at::equal(a[1].steps.back().sum, b[0].steps.back().sum)) << name;
  }
}

// A step whose sum is not finite changes nothing that is kept, on any rank.
TEST(CompressedSum, WhatIsNotFiniteIsSeenByAllAndNotKept) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const auto& [name, options] : AllKinds(5000)) {
      SCOPED_TRACE(name);
      const Gradients good = Random(5000);
      const auto gradients = [&](int rank, uint64_t step) {
        const at::Tensor values = good(rank, step);
        if (rank == 1 && step == 2) values[4321].fill_(bad);
        return values;
      };
      const std::vector<Rank> ranks = SumOn(3, 4, options, gradients);
      for (const Rank& rank : ranks) {
        EXPECT_TRUE(rank.steps[1].sum.isfinite().all().item<bool>());
        EXPECT_FALSE(rank.steps[2].sum.isfinite().all().item<bool>());
        EXPECT_TRUE(rank.steps[3].sum.isfinite().all().item<bool>()) << "it is over";
        for (size_t i = 0; i < rank.steps[2].state.size(); ++i) {
          const at::Tensor off = rank.steps[2].state[i].values.sub(rank.steps[1].state[i].values).abs();
          // But for the element itself, and roundings.
          off[std::min<int64_t>(4321, off.size(0) - 1)].fill_(0);
          EXPECT_LT(off.max().item<float>(), 1e-6) << rank.steps[2].state[i].name;
        }
      }
    }
  }
}

// Lin et al. 2018, algorithm of section 3.1 to 3.2 with momentum factor masking, written down plainly.
TEST(TopKSum, IsThePapersAlgorithm) {
  constexpr int64_t kElements = 700;
  constexpr uint64_t kSteps = 8;
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0) continue;
      Options options = TopKOptions(kElements, 0.02);
      options.compression.mutable_top_k()->set_momentum_correction(momentum > 0);
      options.compression.mutable_top_k()->set_warm_up_steps(4);
      options.momentum = momentum, options.nesterov = nesterov;
      const Gradients gradients = Random(kElements);
      const std::vector<Rank> ranks = SumOn(2, kSteps, options, gradients);
      std::vector<std::vector<float>> u(2, std::vector<float>(kElements)), v = u;
      // 0.25 (0.02 / 0.25)^(step / 4) of 700.
      const int64_t sent[] = {175, 93, 49, 26, 14, 14, 14, 14};
      for (uint64_t step = 0; step < kSteps; ++step) {
        std::vector<float> expected(kElements);
        for (int rank = 0; rank < 2; ++rank) {
          std::vector<float>&own_u = u[static_cast<size_t>(rank)], &own_v = v[static_cast<size_t>(rank)];
          const at::Tensor g = gradients(rank, step);
          for (size_t i = 0; i < kElements; ++i) {
            const float gi = g.const_data_ptr<float>()[i];
            own_u[i] = static_cast<float>(momentum) * own_u[i] + gi;
            own_v[i] += nesterov ? gi + static_cast<float>(momentum) * own_u[i] : own_u[i];
          }
          for (const int32_t i : Largest(own_v, sent[step])) {
            expected[static_cast<size_t>(i)] += own_v[static_cast<size_t>(i)];
            own_v[static_cast<size_t>(i)] = own_u[static_cast<size_t>(i)] = 0;
          }
        }
        const at::Tensor sum = ranks[1].steps[step].sum;
        EXPECT_LT(sum.sub(at::tensor(expected)).abs().max().item<float>(), 1e-5) << step;
        if (momentum > 0) {
          EXPECT_LT(StateOf(ranks[1].steps[step], "momentum").sub(at::tensor(u[1])).abs().max().item<float>(), 1e-5);
        }
      }
    }
  }
}

TEST(TopKSum, OperatorsOfGpusGiveTheSameBits) {
  for (const auto& [values, selection] :
       {std::pair(SENT_VALUES_FP32, SELECTION_EXACT), std::pair(SENT_VALUES_BF16, SELECTION_EXACT),
        std::pair(SENT_VALUES_INT8, SELECTION_EXACT), std::pair(SENT_VALUES_BF16, SELECTION_SAMPLED)}) {
    for (const int64_t elements : {1, 3, 1000, 30011}) {
      Options options = TopKOptions(elements, 0.03, values);
      options.compression.mutable_top_k()->set_momentum_correction(true);
      options.compression.mutable_top_k()->set_selection(selection);
      options.momentum = 0.9;
      const std::vector<Rank> host = SumOn(2, 5, options, Random(elements));
      options.portable = true;
      const std::vector<Rank> portable = SumOn(2, 5, options, Random(elements));
      for (size_t step = 0; step < 5; ++step) {
        EXPECT_TRUE(at::equal(host[0].steps[step].sum, portable[0].steps[step].sum)) << elements << " " << step;
        EXPECT_TRUE(at::equal(host[1].steps[step].state[0].values, portable[1].steps[step].state[0].values));
        EXPECT_TRUE(at::equal(host[1].steps[step].state[1].values, portable[1].steps[step].state[1].values));
      }
    }
  }
}

TEST(Int8Sum, OperatorsOfGpusGiveTheSameBits) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  for (const int64_t elements : {1, 31, 1000, 30011}) {
    const Gradients gradients = [random = Random(elements)](int rank, uint64_t step) {
      at::Tensor values = random(rank, step);
      // Halves are rounded to the even code, a block's largest is code 127, and some blocks have no or hardly any
      // values.
      if (values.numel() > 300) {
        values.narrow(0, 32, 32).mul_(2).round_().div_(2).clamp_(-127, 127)[5] = 127;
        values.narrow(0, 64, 32).zero_();
        values.narrow(0, 96, 32).fill_(kLeast);
        values.narrow(0, 128, 32).mul_(kLargest / 64);
        values.narrow(0, 160, 32).mul_(1e-37);
      }
      return values;
    };
    Options options = Int8Options(elements, 32);
    const std::vector<Rank> host = SumOn(2, 5, options, gradients);
    options.portable = true;
    const std::vector<Rank> portable = SumOn(2, 5, options, gradients);
    for (size_t step = 0; step < 5; ++step) {
      EXPECT_TRUE(at::equal(host[0].steps[step].sum, portable[0].steps[step].sum)) << elements << " " << step;
      EXPECT_TRUE(at::equal(StateOf(host[1].steps[step], "residual"), StateOf(portable[1].steps[step], "residual")));
    }
  }
}

// Two steps by the paper's algorithm 1, with LibTorch's QR in place of Gram-Schmidt: P Q^T does not depend on signs.
TEST(PowerSgdSum, IsThePapersAlgorithm) {
  constexpr int64_t kRows = 20, kColumns = 15, kElements = 2 + kRows * kColumns + 4;
  const Options options = PowerOptions(kElements, {{2, {kRows, 3, 5}}}, 3);
  const Gradients gradients = Random(kElements);
  const std::vector<Rank> ranks = SumOn(2, 3, options, gradients);
  const auto matrix = [](const at::Tensor& flat) {
    return flat.narrow(0, 2, kRows * kColumns).view({kRows, kColumns});
  };
  for (size_t step = 1; step < 3; ++step) {
    at::Tensor sum = at::zeros({kElements}, at::kFloat);
    for (size_t rank = 0; rank < 2; ++rank) {
      sum.add_(gradients(static_cast<int>(rank), step)).add_(StateOf(ranks[rank].steps[step - 1], "residual"));
    }
    const at::Tensor m = matrix(sum), q = StateOf(ranks[0].steps[step - 1], "power_sgd_q");
    ASSERT_EQ(q.sizes(), (at::IntArrayRef{kColumns, 3}));
    const at::Tensor p = std::get<0>(at::linalg_qr(at::matmul(m, q)));
    const at::Tensor expected = at::matmul(p, at::matmul(m.t(), p).t());
    EXPECT_LT(matrix(ranks[1].steps[step].sum).sub(expected).abs().max().item<float>(), 1e-4);
    // The next step begins with this one's Q, whose columns have the signs of P's.
    const at::Tensor next = StateOf(ranks[1].steps[step], "power_sgd_q");
    EXPECT_LT(next.abs().sub(at::matmul(m.t(), p).abs()).abs().max().item<float>(), 1e-4);
    for (const int64_t i : {0, 1, 2 + 300, 2 + 303}) {
      EXPECT_FLOAT_EQ(ranks[1].steps[step].sum[i].item<float>(), sum[i].item<float>()) << "what is no matrix is exact";
    }
  }
}

// Whatever the angle between its first columns: of a few in a hundred, further ones are mostly rounding.
TEST(PowerSgdSum, AMatrixOfItsRankIsExact) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    at::manual_seed(seed);
    const at::Tensor a = at::randn({30, 2}), b = at::randn({2, 40}), ab = at::matmul(a, b);
    const std::vector<Rank> ranks = SumOn(3, 2, PowerOptions(1200, {{0, {30, 40}}}, 4),
                                          [&](int rank, uint64_t) { return ab.mul(rank + 1).view({-1}); });
    for (const AfterStep& step : ranks[2].steps) {
      ASSERT_LT(step.sum.view({30, 40}).sub(ab.mul(6)).abs().max().item<float>(), 1e-3) << seed;
    }
  }
}

TEST(PowerSgdSum, GradientsOfZeroStayZeroAndRecover) {
  const std::vector<Rank> ranks = SumOn(2, 3, PowerOptions(100, {{0, {10, 10}}}, 2), [&](int, uint64_t step) {
    return step == 1 ? at::zeros({100}, at::kFloat) : at::zeros({100}, at::kFloat).add(1);
  });
  EXPECT_LT(ranks[0].steps[0].sum.sub(2).abs().max().item<float>(), 1e-5) << "of rank 1";
  EXPECT_LT(ranks[0].steps[1].sum.abs().max().item<float>(), 1e-5);
  EXPECT_LT(ranks[0].steps[2].sum.sub(2).abs().max().item<float>(), 1e-5);
}

// As that of LoRA's A, since B begins with zeros.
TEST(PowerSgdSum, AMatrixWhoseFirstGradientIsZeroIsSentLater) {
  const std::vector<Rank> ranks = SumOn(2, 3, PowerOptions(100, {{0, {10, 10}}}, 2), [](int, uint64_t step) {
    return at::full({100}, step == 0 ? 0.0 : 1.0, at::kFloat);
  });
  EXPECT_EQ(ranks[0].steps[0].sum.abs().max().item<float>(), 0);
  for (const size_t step : {1u, 2u}) EXPECT_LT(ranks[0].steps[step].sum.sub(2).abs().max().item<float>(), 1e-5) << step;
}

TEST(PowerSgdSum, AFewStepsOfALowRankLoseNone) {
  at::manual_seed(1);
  const at::Tensor low = at::matmul(at::randn({20, 1}), at::randn({1, 30})),
                   high = at::matmul(at::randn({20, 3}), at::randn({3, 30}));
  const std::vector<Rank> ranks = SumOn(2, 6, PowerOptions(600, {{0, {20, 30}}}, 3), [&](int rank, uint64_t step) {
    return (step < 3 ? low : high).mul(rank + 1).view({-1});
  });
  for (size_t step = 0; step < 6; ++step) {
    const at::Tensor expected = (step < 3 ? low : high).mul(3);
    EXPECT_LT(ranks[1].steps[step].sum.view({20, 30}).sub(expected).abs().max().item<float>(), 1e-4) << step;
  }
}

// Each kind's first sum is checked there against the exact one.
TEST(TimeCompressedSum, AllRanksReportTheSame) {
  std::vector<Compression> kinds(3);
  kinds[0].mutable_int8()->set_block(256);
  kinds[1].mutable_power_sgd()->set_rank(4);
  TopK& top_k = *kinds[2].mutable_top_k();
  top_k.set_ratio(0.01), top_k.set_values(SENT_VALUES_BF16), top_k.set_selection(SELECTION_EXACT);
  for (const Compression& kind : kinds) {
    const auto groups = collectives::MakeThreads(3, absl::Seconds(20));
    std::vector<absl::StatusOr<collectives::Timing>> timings(groups.size());
    std::vector<std::thread> ranks;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        timings[rank] = TimeCompressedSum(
            *groups[rank],
            {.compression = kind, .bytes = 50'000, .bucket_bytes = 16'000, .about = absl::Milliseconds(5)}, at::kCPU,
            [] {});
      });
    }
    for (std::thread& rank : ranks) rank.join();
    for (const auto& timing : timings) {
      ASSERT_TRUE(timing.ok()) << timing.status() << kind.ShortDebugString();
      EXPECT_EQ(timing->bytes, 50'000u);
      EXPECT_EQ(timing->count, 12'500u);
      EXPECT_EQ(timing->seconds, timings[0]->seconds);
      EXPECT_NEAR(timing->bus_bytes_per_second / timing->algorithm_bytes_per_second, 4.0 / 3, 1e-9);
    }
  }
}

// Each rounding is off by half a step of its block's scale at most: that of a rank, and that of the sum.
TEST(Int8Sum, IsOffByHalfAStepOfEachRounding) {
  constexpr int64_t kElements = 1000;
  const Gradients gradients = Random(kElements);
  for (const int ranks : {2, 3, 5}) {
    at::Tensor exact = at::zeros({kElements}, at::kFloat);
    float most = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      exact.add_(gradients(rank, 0));
      most = std::max(most, gradients(rank, 0).abs().max().item<float>());
    }
    const std::vector<Rank> of = SumOn(ranks, 1, Int8Options(kElements, 64), gradients);
    const float off = of[0].steps[0].sum.sub(exact).abs().max().item<float>();
    EXPECT_LE(off, (static_cast<float>(ranks) * most + exact.abs().max().item<float>() + most) / 254);
    EXPECT_GT(off, 1e-4f);
  }
}

}  // namespace
}  // namespace muster::compression
