// Ranks as threads, each with its share of a model's tensors, against one rank with all of them.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "models/inventory.h"
#include "worker/units/tensor_rows.h"
#include "worker/units/thread_ranks_test.h"
#include "worker/units/unit.h"

namespace muster::units {
namespace {

// The ranks' rows as those of one rank: a part each, or the same on all.
void ExpectStreams(const std::vector<std::vector<at::Tensor>>& by_rank, const std::vector<at::Tensor>& right,
                   bool parts, double limit, const char* what) {
  for (size_t u = 0; u < right.size(); ++u) {
    const int64_t width = right[u].size(-1);
    std::vector<at::Tensor> rows;
    for (const auto& streams : by_rank) {
      ASSERT_EQ(streams.size(), right.size());
      rows.push_back(streams[u].reshape({-1, width}));
      EXPECT_TRUE(parts || rows.back().equal(rows[0])) << what << " " << u;
    }
    const at::Tensor all = parts ? at::cat(rows, 0) : rows[0];
    EXPECT_LT(ShareError(all, right[u].reshape({-1, width})), limit) << what << " " << u;
  }
}

// Of all tensors' gradients, relative to their sizes.
double SumOfErrors(const ShareRun& seen, const ShareResult& right) {
  double sum = 0;
  for (size_t t = 0; t < seen.shares.size(); ++t) {
    for (const Unit& unit : seen.shares[t].units()) {
      for (const Tensor& tensor : unit.tensors()) {
        sum += ShareError(seen.results[t].gradients.at(tensor.name()),
                          PartOfWhole(right.gradients.at(tensor.name()), tensor));
      }
    }
  }
  return sum / static_cast<double>(seen.shares.size());
}

void ExpectAsOne(const Model& model, uint32_t size, bool sequence_parallel, const ShareWay& way, double limit) {
  const WholeTensors values = ValuesOf(model, way.type);
  const ShareResult right = RunShares(model, 1, false, values, way).results[0];
  const ShareRun seen = RunShares(model, size, sequence_parallel, values, way);
  const std::vector<Inventory>& shares = seen.shares;
  const std::vector<ShareResult>& results = seen.results;
  std::vector<std::vector<at::Tensor>> outputs, flows;
  for (uint32_t t = 0; t < size; ++t) {
    EXPECT_EQ(results[t].loss, results[0].loss);
    outputs.push_back(results[t].outputs), flows.push_back(results[t].flows);
  }
  if (way.mode == Mode::kGenerate) {
    for (const ShareResult& result : results) EXPECT_LT(ShareError(result.logits, right.logits), limit);
    return;
  }
  EXPECT_NEAR(results[0].loss / right.loss, 1, limit);
  ExpectStreams(outputs, right.outputs, sequence_parallel, limit, "output");
  if (way.mode == Mode::kEvaluate) return;
  ExpectStreams(flows, right.flows, sequence_parallel, limit, "gradient of an input");
  for (uint32_t t = 0; t < size; ++t) {
    for (const Unit& unit : shares[t].units()) {
      for (const Tensor& tensor : unit.tensors()) {
        const at::Tensor &seen = results[t].gradients.at(tensor.name()), &whole = right.gradients.at(tensor.name());
        EXPECT_LT(ShareError(seen, PartOfWhole(whole, tensor)), limit) << tensor.name() << " of rank " << t;
        if (tensor.has_box()) continue;
        EXPECT_TRUE(seen.equal(results[0].gradients.at(tensor.name()))) << tensor.name() << " of rank " << t;
      }
    }
  }
}

TEST(TensorShare, ComputesAsOneRank) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const uint32_t size : {2u, 4u}) {
      for (const bool sequence_parallel : {false, true}) {
        for (const UnitOptions& options : {kVectorRows, kDeviceRows}) {
          SCOPED_TRACE(trial.name + (sequence_parallel ? ", sequence parallel, " : ", ") + std::to_string(size) +
                       (options.rows == RowCode::kDevice ? ", programs of GPUs" : ""));
          ExpectAsOne(trial.model, size, sequence_parallel, {.type = at::kDouble, .options = options}, 1e-11);
          ExpectAsOne(trial.model, size, sequence_parallel, {.type = at::kFloat, .options = options}, 1e-4);
          ExpectAsOne(trial.model, size, sequence_parallel,
                      {.type = at::kFloat, .options = options, .mode = Mode::kEvaluate}, 1e-5);
        }
      }
    }
  }
}

// Bit by bit: the second half has the operands of the same GEMMs, in the same pieces.
TEST(TensorShare, HalvesOfABackwardAreTheWhole) {
  const DropoutRates dropout{.embedding = 0.1, .attention = 0.2, .residual = 0.3, .seed = 5, .step = 9};
  const std::vector<ShareWay> ways = {{.type = at::kDouble},
                                      {.type = at::kFloat},
                                      {.type = at::kFloat, .dropout = dropout},
                                      {.type = at::kFloat, .options = kDeviceRows},
                                      {.type = at::kBFloat16, .gradient_scale = 64}};
  for (const ShareTrial& trial : ShareTrials()) {
    for (const ShareWay& way : ways) {
      const WholeTensors values = ValuesOf(trial.model, way.type);
      for (const uint32_t size : {2u, 4u}) {
        for (const bool sequence_parallel : {false, true}) {
          SCOPED_TRACE(trial.name + (sequence_parallel ? ", sequence parallel, " : ", ") + std::to_string(size) + ", " +
                       at::toString(way.type));
          ShareWay halves = way;
          halves.halves = true;
          const ShareRun right = RunShares(trial.model, size, sequence_parallel, values, way);
          const ShareRun seen = RunShares(trial.model, size, sequence_parallel, values, halves);
          for (uint32_t t = 0; t < size; ++t) {
            const ShareResult &mine = seen.results[t], &whole = right.results[t];
            EXPECT_EQ(mine.deferred.size(), 2u) << "both blocks";
            ASSERT_EQ(mine.flows.size(), whole.flows.size());
            for (size_t u = 0; u < whole.flows.size(); ++u) EXPECT_TRUE(mine.flows[u].equal(whole.flows[u])) << u;
            for (const auto& [name, gradient] : whole.gradients) {
              EXPECT_TRUE(mine.gradients.at(name).equal(gradient)) << name << " of rank " << t;
            }
          }
        }
      }
    }
  }
}

// By hand, of 3 samples of 16 tokens in fp32. GPT-2 of width 36: on each of two ranks two norms and two gradients of
// the residual stream, 4 x 36; queries, keys, values, their gradients' and attention's, and the hidden layer's twice,
// 12 x 18. And the gradients of vectors: 6 x 36 on all ranks, 7 x 18 of the rank's columns. Of Llama, width 20, four
// heads of 6, two of keys, hidden layer 28: 4 x 20, queries 2 x 12, keys 2 x 6, the hidden layer 3 x 14; two norms.
TEST(TensorShare, HalvesKeepWhatIsDeclared) {
  const std::vector<ShareTrial> trials = ShareTrials();
  for (const bool sequence_parallel : {false, true}) {
    const auto run = [&](const Model& model) {
      return RunShares(model, 2, sequence_parallel, ValuesOf(model, at::kFloat), {.type = at::kFloat, .halves = true});
    };
    const ShareRun gpt2 = run(trials[0].model), llama = run(trials[1].model);
    for (uint32_t t = 0; t < 2; ++t) {
      const std::vector<uint64_t> of_gpt2(2, 4 * (48 * (4 * 36 + 12 * 18) + 6 * 36 + 7 * 18)),
          of_llama(2, 4 * (48 * (4 * 20 + 2 * 12 + 2 * 6 + 3 * 14) + 2 * 20));
      EXPECT_EQ(gpt2.results[t].deferred, of_gpt2);
      EXPECT_EQ(llama.results[t].deferred, of_llama);
    }
    // Declared for a sample, vectors included; of Llama also those of norms of heads, which this one has not.
    EXPECT_EQ(gpt2.shares[0].units(1).deferred_bytes(), 4u * (16 * (4 * 36 + 12 * 18) + 6 * 36 + 7 * 18));
    EXPECT_EQ(llama.shares[0].units(1).deferred_bytes(),
              4u * (16 * (4 * 20 + 2 * 12 + 2 * 6 + 3 * 14) + 2 * 20 + 2 * 6));
  }
}

// The elements that are dropped are those that one rank drops, else the results had nothing in common.
TEST(TensorShare, DropsWhatOneRankDrops) {
  const DropoutRates dropout{.embedding = 0.1, .attention = 0.2, .residual = 0.3, .seed = 5, .step = 9};
  for (const ShareTrial& trial : ShareTrials()) {
    for (const bool sequence_parallel : {false, true}) {
      for (const UnitOptions& options : {kVectorRows, kDeviceRows}) {
        SCOPED_TRACE(trial.name + (sequence_parallel ? ", sequence parallel" : ""));
        ExpectAsOne(trial.model, 2, sequence_parallel, {.type = at::kDouble, .options = options, .dropout = dropout},
                    1e-11);
      }
    }
  }
}

// Over all gradients, about as near float64 as one rank is: a tensor alone is a matter of luck. Each of four products
// is rounded before they are summed, where one rank rounds once. A wrong gradient is off by its own size.
TEST(TensorShare, InNarrowTypesIsNearFloat64) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const UnitOptions& options : {kVectorRows, kDeviceRows, UnitOptions{.bf16_gemms = Bf16Gemms::kPanels}}) {
      for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
        const ShareWay way{.type = type, .options = options, .gradient_scale = 64};
        ShareWay exact_way = way;
        exact_way.type = at::kDouble;
        const WholeTensors values = ValuesOf(trial.model, type);
        WholeTensors wide;
        for (const auto& [name, value] : values) wide[name] = value.to(at::kDouble);
        const ShareResult exact = RunShares(trial.model, 1, false, wide, exact_way).results[0];
        const ShareRun one = RunShares(trial.model, 1, false, values, way);
        for (const bool sequence_parallel : {false, true}) {
          SCOPED_TRACE(trial.name + (sequence_parallel ? ", sequence parallel, " : ", ") + at::toString(type));
          const ShareRun seen = RunShares(trial.model, 4, sequence_parallel, values, way);
          EXPECT_LT(SumOfErrors(seen, exact), 1.6 * SumOfErrors(one, exact));
          EXPECT_NEAR(seen.results[0].loss / exact.loss, 1, type == at::kHalf ? 2e-3 : 0.01);
          for (const ShareResult& result : seen.results) {
            for (const Tensor& tensor : seen.shares[0].units(1).tensors()) {
              if (tensor.has_box()) continue;
              EXPECT_TRUE(result.gradients.at(tensor.name()).equal(seen.results[0].gradients.at(tensor.name())));
            }
          }
        }
      }
    }
  }
}

// Three ranks with seven rows each, in four chunks: of one, two, two and two of each rank's rows. Row r of rank k is
// 10 k + r.
TEST(RowChunks, AreOfEachRanksRows) {
  ThreadMeeting meeting(3);
  const at::Tensor whole =
      at::cat({at::arange(7), at::arange(10, 17), at::arange(20, 27)}).to(at::kDouble).view({21, 1});
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadTensorRanks ranks(meeting, rank);
      Context context;
      context.tensor = &ranks;
      const TensorRows rows(context, /*parts=*/true);
      RowChunks chunks(rows, 7, 5);
      ASSERT_EQ(chunks.rows(), 21);
      const at::Tensor own = whole.narrow(0, 7 * rank, 7);
      const auto [x, negated] = chunks.StartWhole(own, own.neg());
      const at::Tensor y = at::full({21, 1}, NAN, at::kDouble), products = y.clone();
      std::vector<int64_t> ends;
      for (const RowChunks::Chunk& chunk : chunks.all()) {
        const int64_t n = chunk.end - chunk.begin;
        ends.push_back(chunk.end);
        chunks.Await();
        const at::Tensor here = x.narrow(0, chunk.begin, n);
        EXPECT_TRUE(here.equal(negated.narrow(0, chunk.begin, n).neg()));
        EXPECT_TRUE(chunks.Of(chunk, whole).equal(here)) << "what Of takes is what was gathered";
        chunks.Into(chunk, y, [&](const at::Tensor& to) { at::Tensor(to).copy_(here.mul(2)); });
        products.narrow(0, chunk.begin, n).copy_(here);
        chunks.StartSum(chunk, products);
      }
      EXPECT_EQ(ends, (std::vector<int64_t>{3, 9, 15, 21}));
      EXPECT_TRUE(x.narrow(0, 0, 3).equal(at::tensor({0, 10, 20}, at::kDouble).view({3, 1})));
      EXPECT_TRUE(y.equal(whole.mul(2))) << "the microbatch's order";
      EXPECT_TRUE(chunks.Sum(products).equal(own.mul(3)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TensorShare, TargetsMayAllBeInOneShare) {
  for (const int64_t first : {0, 20, 60}) {
    ExpectAsOne(SmallGpt2(), 4, false, {.type = at::kDouble, .first_target = first, .targets = 1}, 1e-11);
  }
}

TEST(TensorShare, GivesTheLogitsOfOneRank) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const bool sequence_parallel : {false, true}) {
      ExpectAsOne(trial.model, 4, sequence_parallel, {.type = at::kDouble, .mode = Mode::kGenerate}, 1e-11);
    }
  }
}

TEST(TensorShare, IsNotComputedByPortableCode) {
  Train train;
  *train.mutable_model() = SmallGpt2();
  train.mutable_parallel()->set_tensor(2);
  const Inventory share = models::ShareOf(*models::MakeInventory(train), 1);
  const Unit& block = share.units(1);
  std::vector<Parameter> parameters(static_cast<size_t>(block.tensors_size()));
  const absl::Status status = MakeUnit(share, block, parameters, {.portable = true}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(status.message(), "unit h.0 is a share of a unit (parallel.tensor), which portable code does not compute");
}

}  // namespace
}  // namespace muster::units
