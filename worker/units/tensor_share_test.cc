// Ranks as threads, each with its share of a model's tensors, against one rank with all of them.
#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <cmath>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "models/inventory.h"
#include "worker/units/tensor_rows.h"
#include "worker/units/unit.h"

namespace muster::units {
namespace {

// The meeting place of ranks that are threads.
struct ThreadMeeting {
  explicit ThreadMeeting(int64_t ranks) : barrier(ranks), given(static_cast<size_t>(ranks)) {}
  std::barrier<> barrier;
  std::vector<at::Tensor> given;
};

// Counts as the inventory declares.
class ThreadTensorRanks final : public TensorRanks {
 public:
  ThreadTensorRanks(ThreadMeeting& meeting, int64_t rank) : meeting_(meeting), rank_(rank) {}

  int64_t rank() const override { return rank_; }
  int64_t size() const override { return static_cast<int64_t>(meeting_.given.size()); }
  // What is started is done in Finish: until then the values must not be used, and later ones are not yet there.
  void StartSum(const at::Tensor& values) override {
    ++collectives, summed += values.nbytes();
    Start(values, [values](const at::Tensor& sum) { at::Tensor(values).copy_(sum); });
  }
  void StartSumScattered(const at::Tensor& all) override {
    const int64_t n = all.size(0) / size(), first = rank_ * n;
    ++collectives, scattered += all.nbytes() / static_cast<size_t>(size());
    Start(all, [=](const at::Tensor& sum) { all.narrow(0, first, n).copy_(sum.narrow(0, first, n)); });
  }
  void StartGather(const at::Tensor& part, const at::Tensor& all) override {
    ++collectives, gathered += part.nbytes();
    EXPECT_TRUE(part.is_contiguous() && all.is_contiguous());
    const at::Tensor mine = part.clone();
    at::Tensor(all).fill_(NAN);
    under_way_.emplace_back([=, this] {
      at::Tensor(all).copy_(Meet(mine, [](const std::vector<at::Tensor>& parts) { return at::cat(parts, 0); }));
    });
  }
  void Finish() override {
    while (!under_way_.empty()) FinishFirst();
  }
  void FinishFirst() override {
    under_way_.front()();
    under_way_.pop_front();
  }

  uint64_t collectives = 0, summed = 0, gathered = 0, scattered = 0;

 private:
  static at::Tensor Total(const std::vector<at::Tensor>& all) {
    at::Tensor sum = all[0].to(WideType(all[0].scalar_type()), false, /*copy=*/true);
    for (size_t i = 1; i < all.size(); ++i) sum.add_(all[i]);
    return sum.to(all[0].scalar_type());
  }
  template <typename F>
  at::Tensor Meet(const at::Tensor& mine, const F& combine) {
    EXPECT_TRUE(mine.is_contiguous());
    meeting_.given[static_cast<size_t>(rank_)] = mine;
    meeting_.barrier.arrive_and_wait();
    at::Tensor result = combine(meeting_.given);
    meeting_.barrier.arrive_and_wait();
    return result;
  }
  // Takes the values as they are, and spoils them: who reads them before Finish has NaN.
  void Start(const at::Tensor& values, std::function<void(const at::Tensor&)> take) {
    EXPECT_TRUE(values.is_contiguous());
    const at::Tensor mine = values.clone();
    at::Tensor(values).fill_(NAN);
    under_way_.push_back(
        [this, mine, take] { take(Meet(mine, [](const std::vector<at::Tensor>& all) { return Total(all); })); });
  }

  ThreadMeeting& meeting_;
  const int64_t rank_;
  std::deque<std::function<void()>> under_way_;
};

std::vector<int64_t> ShareSizes(const google::protobuf::RepeatedField<uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

// A share's part of a whole tensor.
at::Tensor PartOfWhole(const at::Tensor& whole, const Tensor& tensor) {
  if (!tensor.has_box()) return whole;
  const Box& box = tensor.box();
  return whole.view(ShareSizes(box.view()))
      .narrow(box.axis(), static_cast<int64_t>(box.begin()), static_cast<int64_t>(box.size()))
      .reshape(ShareSizes(tensor.shape()));
}

constexpr int64_t kSamples = 3;
constexpr uint64_t kPieceRows = 7;

struct ShareTrial {
  std::string name;
  Model model;
};

struct ShareWay {
  at::ScalarType type = at::kDouble;
  UnitOptions options = {};
  DropoutRates dropout = {};
  Mode mode = Mode::kTrain;  // kEvaluate: the loss only
  double gradient_scale = 1;
  int64_t first_target = 0, targets = 0;  // ids; 0: all
  bool halves = false;                    // backwards that split: all first halves, then all second ones
};

struct ShareResult {
  std::map<std::string, at::Tensor> gradients;
  std::vector<at::Tensor> outputs;  // of each unit
  std::vector<at::Tensor> flows;    // gradients of these
  std::vector<uint64_t> deferred;   // bytes that each split backward keeps between its halves
  double loss = 0;
  at::Tensor logits;  // in mode kGenerate
};

using WholeTensors = std::map<std::string, at::Tensor>;

WholeTensors WholeValues(const Inventory& inventory, at::ScalarType type) {
  WholeTensors values;
  double seed = 0;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      const auto n = static_cast<int64_t>(models::Elements(tensor));
      // Without a pattern: in a matrix of low rank the shares' products would cancel, and so lose more.
      const at::Tensor i = at::arange(n, at::kDouble);
      at::Tensor value = i.mul(i).remainder(10'007).mul(1.7).add(++seed).sin().mul(0.3);
      if (tensor.init().kind() == Initialisation::ONES) value.add_(1);
      values[tensor.name()] = value.view(ShareSizes(tensor.shape())).to(type);
    }
  }
  return values;
}

// `bytes`: in fp32, of which the declared bytes are.
// At least as many rows as ranks have pieces, so these make the chunks.
void ExpectCounted(const Unit& unit, const TensorExchange::Pass& pass, int64_t pieces, bool bytes,
                   const ThreadTensorRanks& before, const ThreadTensorRanks& after, const char* what) {
  SCOPED_TRACE(unit.name() + what);
  const auto n = static_cast<uint64_t>(pieces), chunks = std::min<uint64_t>(n, 4);
  EXPECT_EQ(after.collectives - before.collectives,
            pass.collectives() + n * pass.piece_collectives() + chunks * pass.chunked_collectives());
  if (!bytes) return;
  EXPECT_EQ(after.summed - before.summed, kSamples * pass.summed_bytes() + pass.constant_bytes());
  EXPECT_EQ(after.gathered - before.gathered, kSamples * pass.gathered_bytes());
  EXPECT_EQ(after.scattered - before.scattered, kSamples * pass.scattered_bytes());
}

// Of the storages of `tensors`, each once.
uint64_t StoredBytes(const std::vector<at::Tensor>& tensors) {
  std::map<const c10::StorageImpl*, uint64_t> storages;
  for (const at::Tensor& tensor : tensors) {
    storages[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
  }
  uint64_t bytes = 0;
  for (const auto& [storage, its] : storages) bytes += its;
  return bytes;
}

// One rank of `inventory`, which is of a share or of the whole.
ShareResult RunShare(const Inventory& inventory, const WholeTensors& values, const ShareWay& way,
                     ThreadTensorRanks* ranks) {
  const c10::AutoGradMode off(false);
  std::map<std::string, Parameter> parameters;
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      const at::Tensor value = PartOfWhole(values.at(tensor.name()), tensor).clone();
      parameters[tensor.name()] = {value, at::zeros(value.sizes(), value.options().dtype(WideType(way.type)))};
    }
  }
  std::vector<std::unique_ptr<UnitModule>> units;
  for (int u = 0; u < inventory.units_size(); ++u) {
    const Unit& unit = inventory.units(u);
    std::vector<Parameter> own;
    for (const Tensor& tensor : unit.tensors()) own.push_back(parameters.at(tensor.name()));
    for (const Borrow& borrow : unit.borrows()) own.push_back(parameters.at(borrow.tensor()));
    UnitOptions options = way.options;
    options.index = u;
    units.push_back(MakeUnit(inventory, unit, std::move(own), options).value());
  }
  const auto context_length = static_cast<int64_t>(inventory.task().targets_per_sample());
  const auto vocabulary = static_cast<int64_t>(models::Find(inventory.task(), models::kTargets).bound());
  const at::Tensor ids = at::arange(kSamples * context_length, at::kLong).mul(7).remainder(vocabulary);
  const at::Tensor next = at::arange(kSamples * context_length, at::kLong).mul(5).add(3);
  const int64_t bound = way.targets == 0 ? vocabulary : way.targets;
  Context context;
  context.mode = way.mode;
  context.samples = kSamples;
  context.tensor = ranks;
  context.dropout = way.dropout;
  context.batch.Set(models::kInputs, ids.view({kSamples, context_length}));
  if (way.mode != Mode::kGenerate) {
    context.batch.Set(models::kTargets, next.remainder(bound).add(way.first_target).view({kSamples, context_length}));
  }
  context.loss_sum = at::zeros({}, at::kDouble);
  context.loss_scale = 0.25;
  if (way.gradient_scale != 1) context.gradient_scale = at::full({1}, way.gradient_scale, at::kFloat);
  ShareResult result;
  std::vector<Saved> saved(units.size()), deferred(units.size());
  Activations flow;
  const bool count = ranks != nullptr && way.mode != Mode::kGenerate, bytes = way.type == at::kFloat;
  const auto pieces = [&](const Unit& unit) {
    const auto rows = static_cast<uint64_t>(kSamples * context_length);
    const uint64_t most = models::PieceRows(rows, unit.piece_rows());
    return static_cast<int64_t>((rows + most - 1) / most);
  };
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = inventory.units(static_cast<int>(u));
    std::unique_ptr<ThreadTensorRanks> before;
    if (count) before = std::make_unique<ThreadTensorRanks>(*ranks);
    flow = units[u]->Forward(context, flow, saved[u]);
    if (count) {
      const TensorExchange& exchange = unit.tensor_exchange();
      ExpectCounted(unit, way.mode == Mode::kTrain ? exchange.forward() : exchange.evaluation(), pieces(unit), bytes,
                    *before, *ranks, " forward");
    }
    if (!flow.empty()) result.outputs.push_back(flow[0].clone());
  }
  if (way.mode == Mode::kGenerate) result.logits = flow.at(0);
  if (way.mode == Mode::kTrain) {
    for (size_t u = units.size(); u-- > 0;) {
      std::unique_ptr<ThreadTensorRanks> before;
      if (count) before = std::make_unique<ThreadTensorRanks>(*ranks);
      const Unit& unit = inventory.units(static_cast<int>(u));
      if (way.halves && unit.deferred_bytes() > 0) {
        flow = units[u]->BackwardInputs(context, std::move(saved[u]), flow, deferred[u]);
        result.deferred.push_back(StoredBytes(deferred[u].tensors));
      } else {
        flow = units[u]->Backward(context, std::move(saved[u]), flow);
      }
      if (count)
        ExpectCounted(unit, unit.tensor_exchange().backward(), pieces(unit), bytes, *before, *ranks, " backward");
      if (!flow.empty()) result.flows.push_back(flow[0].clone());
    }
  }
  // By now parameters are released, and other ranks at something else.
  if (!result.deferred.empty()) {
    for (const auto& [name, p] : parameters) at::Tensor(p.value).fill_(NAN);
  }
  const uint64_t collectives = ranks == nullptr ? 0 : ranks->collectives;
  for (size_t u = units.size(); u-- > 0;) {
    if (!deferred[u].tensors.empty()) units[u]->BackwardWeights(std::move(deferred[u]));
  }
  EXPECT_EQ(ranks == nullptr ? 0 : ranks->collectives, collectives);
  for (const auto& [name, p] : parameters) result.gradients[name] = p.gradient;
  result.loss = context.loss_sum.item<double>();
  return result;
}

double ShareError(const at::Tensor& seen, const at::Tensor& right) {
  const double size = right.to(at::kDouble).norm().item<double>();
  return seen.to(at::kDouble).sub(right.to(at::kDouble)).norm().item<double>() / (size > 0 ? size : 1);
}

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

struct Shared {
  std::vector<Inventory> shares;
  std::vector<ShareResult> results;  // of each
};

// `values`: of the whole model.
Shared RunShares(const Model& model, uint32_t size, bool sequence_parallel, const WholeTensors& values,
                 const ShareWay& way) {
  at::set_num_threads(1);
  Train train;
  *train.mutable_model() = model;
  train.mutable_parallel()->set_tensor(size);
  train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
  const auto divided = models::MakeInventory(train);
  EXPECT_TRUE(divided.ok()) << divided.status();
  Shared all;
  for (uint32_t t = 0; t < size; ++t) {
    all.shares.push_back(models::ShareOf(*divided, t));
    for (Unit& unit : *all.shares.back().mutable_units()) unit.set_piece_rows(kPieceRows);
  }
  all.results.resize(size);
  ThreadMeeting meeting(size);
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < size; ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      ThreadTensorRanks ranks(meeting, t);
      all.results[t] = RunShare(all.shares[t], values, way, size > 1 ? &ranks : nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

WholeTensors ValuesOf(const Model& model, at::ScalarType type) {
  return WholeValues(*models::MakeInventory(model), type);
}

// Of all tensors' gradients, relative to their sizes.
double SumOfErrors(const Shared& seen, const ShareResult& right) {
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
  const Shared seen = RunShares(model, size, sequence_parallel, values, way);
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

Model SmallGpt2() {
  Model model;
  Gpt2& m = *model.mutable_gpt2();
  m.set_layers(2), m.set_heads(4), m.set_width(36), m.set_vocabulary(61), m.set_context(16);
  return model;
}

std::vector<ShareTrial> ShareTrials() {
  // With four heads of queries: two of keys and values are fewer than four ranks.
  const auto llama = [](const std::function<void(Llama&)>& change) {
    Model model;
    Llama& m = *model.mutable_llama();
    m.set_layers(2), m.set_heads(4), m.set_key_value_heads(2), m.set_width(20), m.set_head_width(6), m.set_inner(28);
    m.set_vocabulary(19), m.set_context(16);
    change(m);
    return model;
  };
  return {{"gpt2", SmallGpt2()},
          {"llama", llama([](Llama&) {})},
          {"tied, as many heads of keys", llama([](Llama& m) { m.set_key_value_heads(4), m.set_tied_head(true); })},
          {"one head of keys, with biases", llama([](Llama& m) { m.set_key_value_heads(1), m.set_qkv_bias(true); })},
          {"biases and a window", llama([](Llama& m) { m.set_qkv_bias(true), m.set_window(5); })},
          {"norms of heads", llama([](Llama& m) { m.set_qk_norm(true); })},
          {"norms of heads, eight of which share two",
           llama([](Llama& m) { m.set_heads(8), m.set_qk_norm(true), m.set_window(7); })}};
}

const UnitOptions kVectorRows{}, kDeviceRows{.rows = RowCode::kDevice};

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
          const Shared right = RunShares(trial.model, size, sequence_parallel, values, way);
          const Shared seen = RunShares(trial.model, size, sequence_parallel, values, halves);
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
    const Shared gpt2 = run(trials[0].model), llama = run(trials[1].model);
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
        const Shared one = RunShares(trial.model, 1, false, values, way);
        for (const bool sequence_parallel : {false, true}) {
          SCOPED_TRACE(trial.name + (sequence_parallel ? ", sequence parallel, " : ", ") + at::toString(type));
          const Shared seen = RunShares(trial.model, 4, sequence_parallel, values, way);
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
