// Ranks as threads that share each sequence, against one rank with all tokens.
#include "worker/units/sequence_ranks.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/units/autograd.h"
#include "worker/units/float64_test.h"
#include "worker/units/operator_attention.h"
#include "worker/units/sequence_attention.h"
#include "worker/units/thread_ranks_test.h"

namespace muster::units {
namespace {

// Calls body(rank, its ranks) on a thread of each of so many ranks.
void OnEachRank(int64_t ranks, const std::function<void(int64_t, ThreadTensorRanks&)>& body) {
  ThreadMeeting meeting(ranks);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadTensorRanks mine(meeting, rank);
      body(rank, mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Eight tokens, of which a rank has these: in float64, so that a value is a token's place, a hundred for a sample, a
// thousand for a head and ten thousand for values in place of keys.
const std::map<int64_t, std::vector<std::vector<int64_t>>> kPlaces = {
    {1, {{0, 1, 2, 3, 4, 5, 6, 7}}}, {2, {{0, 1, 6, 7}, {2, 3, 4, 5}}}, {4, {{0, 7}, {1, 6}, {2, 5}, {3, 4}}}};

at::Tensor AllKeysAndValues() {
  const auto axis = [](int64_t size, int64_t unit, int64_t before, int64_t after) {
    std::vector<int64_t> shape(static_cast<size_t>(before), 1);
    shape.push_back(size), shape.insert(shape.end(), static_cast<size_t>(after), 1);
    return at::arange(size, at::kDouble).mul(unit).view(shape);
  };
  return axis(2, 10'000, 0, 4) + axis(2, 100, 1, 3) + axis(8, 1, 2, 2) + axis(3, 1'000, 3, 1) + axis(1, 0, 4, 0);
}

TEST(OwnTokens, AreGatheredInTheOrderOfTheSequence) {
  const at::Tensor whole = AllKeysAndValues();  // [2, 2 samples, 8 tokens, 3 heads, 1]
  for (const auto& [ranks, places] : kPlaces) {
    OnEachRank(ranks, [&, &places = places](int64_t rank, ThreadTensorRanks& mine) {
      const at::Tensor own = at::tensor(places[static_cast<size_t>(rank)], at::kLong);
      Context context;
      context.sequence = &mine;
      const OwnTokens tokens(context, own.size(0));
      EXPECT_FALSE(tokens.whole());
      EXPECT_TRUE(tokens.Rows(at::arange(8)).equal(own));
      const at::Tensor table = at::zeros({8}, at::kDouble);
      tokens.AddToRows(own.to(at::kDouble).add(1), table);
      EXPECT_TRUE(table.index_select(0, own).equal(own.to(at::kDouble).add(1)));
      EXPECT_EQ(table.sum().item<double>(), own.sum().item<double>() + static_cast<double>(own.size(0)));
      // Views, as blocks have them.
      const at::Tensor beside = whole.index_select(2, own).permute({1, 2, 0, 3, 4}).contiguous();
      const at::Tensor all = tokens.Gather(tokens.StartGather(beside.select(2, 0), beside.select(2, 1)));
      EXPECT_TRUE(all.equal(whole));
      EXPECT_TRUE(all.is_contiguous());
      const at::Tensor sums = at::full_like(beside, -1);
      tokens.ScatterSums(whole.mul(static_cast<double>(rank + 1)), sums.select(2, 0), sums.select(2, 1));
      EXPECT_TRUE(sums.equal(beside.mul(static_cast<double>(ranks * (ranks + 1) / 2))));
    });
  }
}

TEST(OwnTokens, OfOneRankAreAllFromItsPosition) {
  Context context;
  context.position = 3, context.mode = Mode::kGenerate, context.dropout.residual = 0.5;
  const OwnTokens tokens(context, 4);
  EXPECT_TRUE(tokens.whole());
  EXPECT_TRUE(tokens.Rows(at::arange(8)).equal(at::arange(3, 7)));
}

TEST(OwnTokens, RefusePromptsAndOtherThanTwoRuns) {
  OnEachRank(2, [](int64_t, ThreadTensorRanks& mine) {
    Context context;
    context.sequence = &mine;
    EXPECT_NO_THROW(OwnTokens(context, 4));
    EXPECT_THROW(OwnTokens(context, 3), c10::Error);
    context.mode = Mode::kGenerate;
    EXPECT_THROW(OwnTokens(context, 4), c10::Error);
  });
}

TEST(OwnTokens, HaveTheirPlacesInDropout) {
  for (const auto& [ranks, places] : kPlaces) {
    OnEachRank(ranks, [&, &places = places](int64_t rank, ThreadTensorRanks& mine) {
      const std::vector<int64_t>& own = places[static_cast<size_t>(rank)];
      Context context;
      context.sequence = &mine;
      context.dropout = {.attention = 0.1, .residual = 0.2, .seed = 5, .step = 9, .first_sample = 3};
      const auto tokens = static_cast<int64_t>(own.size());
      const DropoutPlace place = context.DropoutOfTokens(context.dropout.residual, 2, 1, tokens);
      const DropoutRows rows = place.rows.Of(tokens, 10);
      for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(rows.FirstElement(static_cast<int64_t>(i)), 10 * own[i]);
      EXPECT_EQ(place.rate, 0.2);
      EXPECT_EQ(place.place, 2u * 4 + 1);
      EXPECT_EQ(place.first_element, 0);
      // The third of four shares of twelve heads: before it are six of all 8 x 8 weights.
      ThreadMeeting shares(4);
      ThreadTensorRanks third(shares, 2);
      context.tensor = &third;
      const DropoutPlace weights = context.DropoutOfWeights(2, 3, tokens);
      EXPECT_EQ(weights.rate, 0.1);
      EXPECT_EQ(weights.place, 2u * 4);
      EXPECT_EQ(weights.first_element, 6 * 8 * 8);
      EXPECT_EQ(weights.rows.size, 0) << "the code of attention knows its queries";
    });
  }
}

// How ranks share a model: so many its tensors, and so many each sequence.
struct SequenceGrid {
  uint32_t tensor, context;
  bool sequence_parallel = false;

  std::string Name() const {
    return std::to_string(context) + " ranks a sequence, " + std::to_string(tensor) + " of the tensors" +
           (sequence_parallel ? ", sequence parallel" : "");
  }
};
const std::vector<SequenceGrid> kGrids = {{1, 2}, {1, 4}, {2, 2}, {2, 2, true}, {4, 2}, {2, 4, true}};

ShareRun RunGrid(const Model& model, const SequenceGrid& grid, const WholeTensors& values, const ShareWay& way) {
  return RunShares(model, grid.tensor, grid.sequence_parallel, values, way, grid.context);
}

// The rows of what flows between units, of all ranks in the order of one. `u`: among the flows of each rank.
at::Tensor Assembled(const ShareRun& run, const SequenceGrid& grid, std::vector<at::Tensor> ShareResult::*flows,
                     size_t u) {
  std::vector<at::Tensor> parts, places;
  for (uint32_t c = 0; c < grid.context; ++c) {
    std::vector<at::Tensor> rows;
    for (uint32_t t = 0; t < grid.tensor; ++t) {
      const at::Tensor& flow = (run.results[c * grid.tensor + t].*flows).at(u);
      rows.push_back(flow.reshape({-1, flow.size(2)}));
      EXPECT_TRUE(grid.sequence_parallel || rows[t].equal(rows[0])) << "of rank " << t;
    }
    const at::Tensor own = grid.sequence_parallel ? at::cat(rows, 0) : rows[0];
    parts.push_back(own.view({kSamples, -1, own.size(1)}));
  }
  const int64_t tokens = parts[0].size(1) * grid.context;
  for (uint32_t c = 0; c < grid.context; ++c) places.push_back(PlacesOf(tokens, grid.context, c));
  const at::Tensor by_rank = at::cat(parts, 1), whole = at::empty_like(by_rank);
  at::Tensor(whole).index_copy_(1, at::cat(places, 0), by_rank);
  return whole;
}

// A parameter's gradient of tensor rank t: each rank of a sequence has that of its tokens.
at::Tensor SummedGradient(const ShareRun& run, const SequenceGrid& grid, uint32_t t, const std::string& name) {
  at::Tensor sum;
  for (uint32_t c = 0; c < grid.context; ++c) {
    const at::Tensor& own = run.results[c * grid.tensor + t].gradients.at(name);
    sum = c == 0 ? own.to(at::kDouble, false, /*copy=*/true) : sum.add_(own);
  }
  return sum;
}

void ExpectAsWhole(const Model& model, const SequenceGrid& grid, const ShareWay& way, double limit) {
  SCOPED_TRACE(grid.Name());
  const WholeTensors values = ValuesOf(model, way.type);
  const ShareResult right = RunShares(model, 1, false, values, way).results[0];
  const ShareRun seen = RunGrid(model, grid, values, way);
  double loss = 0;
  for (uint32_t c = 0; c < grid.context; ++c) loss += seen.results[c * grid.tensor].loss;
  EXPECT_NEAR(loss / right.loss, 1, limit);
  for (size_t u = 0; u < right.outputs.size(); ++u) {
    EXPECT_LT(ShareError(Assembled(seen, grid, &ShareResult::outputs, u), right.outputs[u]), limit) << "output " << u;
  }
  for (size_t u = 0; u < right.flows.size(); ++u) {
    EXPECT_LT(ShareError(Assembled(seen, grid, &ShareResult::flows, u), right.flows[u]), limit) << "gradient " << u;
  }
  if (way.mode == Mode::kEvaluate) return;
  for (uint32_t t = 0; t < grid.tensor; ++t) {
    for (const Unit& unit : seen.shares[t].units()) {
      for (const Tensor& tensor : unit.tensors()) {
        EXPECT_LT(ShareError(SummedGradient(seen, grid, t, tensor.name()),
                             PartOfWhole(right.gradients.at(tensor.name()), tensor)),
                  limit)
            << tensor.name() << " of rank " << t;
      }
    }
  }
}

const char* NameOfCode(const UnitOptions& options) {
  return options.portable ? ", the reference" : options.rows == RowCode::kDevice ? ", programs of GPUs" : "";
}

TEST(SequenceRanks, ComputeAsOneRank) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const SequenceGrid& grid : kGrids) {
      for (const UnitOptions& options : {kVectorRows, kDeviceRows}) {
        SCOPED_TRACE(trial.name + NameOfCode(options));
        ExpectAsWhole(trial.model, grid, {.type = at::kDouble, .options = options}, 1e-11);
        ExpectAsWhole(trial.model, grid, {.type = at::kFloat, .options = options}, 1e-4);
        ExpectAsWhole(trial.model, grid, {.type = at::kFloat, .options = options, .mode = Mode::kEvaluate}, 1e-5);
      }
    }
  }
}

TEST(SequenceRanks, ComputeAsOneRankByAutograd) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const SequenceGrid& grid : {SequenceGrid{1, 2}, SequenceGrid{1, 4}}) {
      SCOPED_TRACE(trial.name);
      ExpectAsWhole(trial.model, grid, {.type = at::kDouble, .options = {.portable = true}}, 1e-11);
      ExpectAsWhole(trial.model, grid, {.options = {.portable = true}, .mode = Mode::kEvaluate}, 1e-11);
    }
  }
}

const DropoutRates kSequenceDropout{.embedding = 0.1, .attention = 0.2, .residual = 0.3, .seed = 5, .step = 9};

// The elements that are dropped are those that one rank drops, else the results had nothing in common.
TEST(SequenceRanks, DropWhatOneRankDrops) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const SequenceGrid& grid : kGrids) {
      for (const UnitOptions& options : {kVectorRows, kDeviceRows, UnitOptions{.portable = true}}) {
        if (options.portable && grid.tensor > 1) continue;
        SCOPED_TRACE(trial.name + NameOfCode(options));
        const ShareWay way{.type = at::kDouble, .options = options, .dropout = kSequenceDropout};
        ExpectAsWhole(trial.model, grid, way, 1e-11);
      }
    }
  }
}

// In blocks of queries by products, as many as a mask has of a sequence: 1,024 and 8.
TEST(SequenceRanks, DropInBlocksOfQueriesWhatAllOfThemDrop) {
  constexpr int64_t kAll = 1032;
  OnEachRank(1, [](int64_t, ThreadTensorRanks& mine) {
    Context context;
    context.sequence = &mine;
    context.dropout = {.attention = 0.3, .seed = 4, .step = 6, .first_sample = 3};
    const OwnTokens own(context, kAll);
    const DropoutPlace dropout = context.DropoutOfWeights(2, 2, kAll);
    for (const int64_t window : {0, 100}) {
      const auto leaf = [](int seed) { return NormalNumbers({1, kAll, 2, 3}, at::kDouble, seed).requires_grad_(true); };
      const at::Tensor q = leaf(1), k = leaf(2), v = leaf(3);
      const auto by_head = [](const at::Tensor& t) { return t.transpose(1, 2); };
      const KeyWindow seen{.window = window};
      const at::Tensor out = AttendToSequenceByOperator(own, q, k, v, dropout, seen);
      const at::Tensor right =
          by_head(AttendCausally(by_head(q), by_head(k), by_head(v), dropout, seen)).reshape(out.sizes());
      ExpectFloat64(out, right, "out");
      const at::Tensor d_out = NormalNumbers(out.sizes(), at::kDouble, 4);
      const std::vector<at::Tensor> seen_gradients = Gradients(out, d_out, {q, k, v}),
                                    gradients = Gradients(right, d_out, {q, k, v});
      for (size_t i = 0; i < 3; ++i) ExpectFloat64(seen_gradients[i], gradients[i], "a gradient");
    }
  });
}

// Runs of 68 tokens, in blocks of 64 queries; and a window of less and of more than a run.
TEST(SequenceRanks, MayHaveMoreThanABlockOfQueries) {
  std::vector<Model> models(3, ShareTrials()[1].model);
  models[0] = SmallGpt2();
  models[0].mutable_gpt2()->set_layers(1), models[0].mutable_gpt2()->set_context(272);
  for (size_t i = 1; i < 3; ++i) {
    Llama& llama = *models[i].mutable_llama();
    llama.set_layers(1), llama.set_context(272), llama.set_window(i == 1 ? 40 : 100);
  }
  for (const Model& model : models) {
    for (const UnitOptions& options : {kVectorRows, kDeviceRows, UnitOptions{.portable = true}}) {
      SCOPED_TRACE(model.ShortDebugString() + NameOfCode(options));
      ExpectAsWhole(model, {1, 2}, {.type = at::kDouble, .options = options}, 1e-11);
      ExpectAsWhole(model, {1, 2}, {.type = at::kDouble, .options = options, .dropout = kSequenceDropout}, 1e-11);
    }
  }
}

// More than LibTorch's operator takes at a time (models::kMaskedQueries): 1,024 and 8 of each run.
TEST(SequenceRanks, MayHaveMoreQueriesThanAMask) {
  Model model = SmallGpt2();
  model.mutable_gpt2()->set_layers(1), model.mutable_gpt2()->set_context(4 * 1032);
  ExpectAsWhole(model, {1, 2}, {.type = at::kDouble, .options = kDeviceRows}, 1e-11);
}

void ExpectEqualRuns(const ShareRun& seen, const ShareRun& right) {
  ASSERT_EQ(seen.results.size(), right.results.size());
  for (size_t r = 0; r < right.results.size(); ++r) {
    const ShareResult &mine = seen.results[r], &other = right.results[r];
    EXPECT_EQ(mine.loss, other.loss);
    ASSERT_EQ(mine.flows.size(), other.flows.size());
    for (size_t u = 0; u < other.flows.size(); ++u) EXPECT_TRUE(mine.flows[u].equal(other.flows[u])) << u;
    for (const auto& [name, gradient] : other.gradients) {
      EXPECT_TRUE(mine.gradients.at(name).equal(gradient)) << name << " of rank " << r;
    }
  }
}

// Bit by bit, as without ranks that share sequences.
TEST(SequenceRanks, RecomputeAndSplitBackwardToTheSameBits) {
  for (const ShareTrial& trial : ShareTrials()) {
    for (const SequenceGrid& grid : {SequenceGrid{1, 2}, SequenceGrid{2, 2, true}, SequenceGrid{4, 2}}) {
      for (const ShareWay& way : {ShareWay{.type = at::kFloat}, ShareWay{.type = at::kFloat, .options = kDeviceRows},
                                  ShareWay{.type = at::kFloat, .dropout = kSequenceDropout},
                                  ShareWay{.type = at::kFloat, .options = kDeviceRows, .dropout = kSequenceDropout},
                                  ShareWay{.type = at::kBFloat16, .gradient_scale = 64}}) {
        SCOPED_TRACE(trial.name + ", " + grid.Name() + NameOfCode(way.options));
        const WholeTensors values = ValuesOf(trial.model, way.type);
        const ShareRun right = RunGrid(trial.model, grid, values, way);
        ShareWay other = way;
        other.recompute = true;
        ExpectEqualRuns(RunGrid(trial.model, grid, values, other), right);
        other.recompute = false, other.halves = true;
        const ShareRun halves = RunGrid(trial.model, grid, values, other);
        EXPECT_EQ(halves.results[0].deferred.size(), 2u) << "both blocks";
        ExpectEqualRuns(halves, right);
      }
    }
  }
}

// Over all gradients, about as near float64 as one rank is; as of ranks that share tensors.
TEST(SequenceRanks, InNarrowTypesAreNearFloat64) {
  const auto error = [](const ShareRun& run, const SequenceGrid& grid, const ShareResult& right) {
    double sum = 0;
    for (uint32_t t = 0; t < grid.tensor; ++t) {
      for (const Unit& unit : run.shares[t].units()) {
        for (const Tensor& tensor : unit.tensors()) {
          sum += ShareError(SummedGradient(run, grid, t, tensor.name()),
                            PartOfWhole(right.gradients.at(tensor.name()), tensor));
        }
      }
    }
    return sum / grid.tensor;
  };
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
        for (const SequenceGrid& grid : {SequenceGrid{1, 4}, SequenceGrid{2, 2, true}}) {
          SCOPED_TRACE(trial.name + ", " + grid.Name() + ", " + at::toString(type) + NameOfCode(options));
          EXPECT_LT(error(RunGrid(trial.model, grid, values, way), grid, exact), 1.6 * error(one, {1, 1}, exact));
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::units
