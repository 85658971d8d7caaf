// Ranks as threads that compute one model together, each with its share of the tensors or its part of the tokens, and
// one rank alone. Included by the tests that compare the two.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
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
#include "worker/units/unit.h"

namespace muster::units {

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

inline std::vector<int64_t> ShareSizes(const google::protobuf::RepeatedField<uint64_t>& shape) {
  return {shape.begin(), shape.end()};
}

// A share's part of a whole tensor.
inline at::Tensor PartOfWhole(const at::Tensor& whole, const Tensor& tensor) {
  if (!tensor.has_box()) return whole;
  const Box& box = tensor.box();
  return whole.view(ShareSizes(box.view()))
      .narrow(box.axis(), static_cast<int64_t>(box.begin()), static_cast<int64_t>(box.size()))
      .reshape(ShareSizes(tensor.shape()));
}

inline constexpr int64_t kSamples = 3;
inline constexpr uint64_t kPieceRows = 7;

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
  bool recompute = false;                 // blocks save nothing in forward, and compute it again before backward
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

inline WholeTensors WholeValues(const Inventory& inventory, at::ScalarType type) {
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
inline void ExpectCounted(const Unit& unit, const TensorExchange::Pass& pass, int64_t pieces, bool bytes,
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

// Of `context` ranks that share a sequence, the places of rank c's tokens: run c of 2 `context`, and the one as far
// from the end.
inline at::Tensor PlacesOf(int64_t tokens, int64_t context, int64_t c) {
  const int64_t run = tokens / (2 * context);
  return at::cat({at::arange(c * run, (c + 1) * run), at::arange(tokens - (c + 1) * run, tokens - c * run)});
}

// Elements of a token's keys that the queries of one of `tensor` ranks see.
inline int64_t SeenKeyElements(const Model& model, uint32_t tensor) {
  if (model.has_gpt2()) return model.gpt2().width() / tensor;
  return std::max(1u, model.llama().key_value_heads() / tensor) * model.llama().head_width();
}

inline bool IsBlock(const Unit& unit) { return absl::EndsWith(unit.kind(), ".block"); }

// What ranks that share sequences exchange in a pass: in blocks alone, keys and values of all tokens once, and backward
// again and their gradients. `bytes`: of the keys and values of a rank's part of the samples.
inline void ExpectKeysExchanged(const Unit& unit, bool backward, uint64_t bytes, const ThreadTensorRanks& before,
                                const ThreadTensorRanks& after) {
  SCOPED_TRACE(unit.name() + (backward ? " backward" : " forward"));
  const uint64_t block = IsBlock(unit) ? 1 : 0, back = backward ? 1 : 0;
  EXPECT_EQ(after.collectives - before.collectives, block * (1 + back));
  EXPECT_EQ(after.gathered - before.gathered, block * bytes);
  EXPECT_EQ(after.scattered - before.scattered, block * back * bytes);
  EXPECT_EQ(after.summed, before.summed);
}

// Of the storages of `tensors`, each once.
inline uint64_t StoredBytes(const std::vector<at::Tensor>& tensors) {
  std::map<const c10::StorageImpl*, uint64_t> storages;
  for (const at::Tensor& tensor : tensors) {
    storages[tensor.storage().unsafeGetStorageImpl()] = tensor.storage().nbytes();
  }
  uint64_t bytes = 0;
  for (const auto& [storage, its] : storages) bytes += its;
  return bytes;
}

// One rank of `inventory`, which is of a share or of the whole; `sequence`: those that share each sequence with it.
inline ShareResult RunShare(const Inventory& inventory, const WholeTensors& values, const ShareWay& way,
                            ThreadTensorRanks* ranks, ThreadTensorRanks* sequence = nullptr) {
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
  const auto context_length = static_cast<int64_t>(models::Find(inventory.task(), models::kTargets).shape(0));
  const int64_t own_tokens = context_length / (sequence == nullptr ? 1 : sequence->size());
  const auto own = [&](const at::Tensor& ids) {
    const at::Tensor whole = ids.view({kSamples, context_length});
    return sequence == nullptr ? whole
                               : whole.index_select(1, PlacesOf(context_length, sequence->size(), sequence->rank()));
  };
  const auto vocabulary = static_cast<int64_t>(models::Find(inventory.task(), models::kTargets).bound());
  const at::Tensor ids = at::arange(kSamples * context_length, at::kLong).mul(7).remainder(vocabulary);
  const at::Tensor next = at::arange(kSamples * context_length, at::kLong).mul(5).add(3);
  const int64_t bound = way.targets == 0 ? vocabulary : way.targets;
  Context context;
  context.mode = way.mode;
  context.samples = kSamples;
  context.tensor = ranks, context.sequence = sequence;
  context.dropout = way.dropout;
  context.batch.Set(models::kInputs, own(ids));
  if (way.mode != Mode::kGenerate) {
    context.batch.Set(models::kTargets, own(next.remainder(bound).add(way.first_target)));
  }
  context.loss_sum = at::zeros({}, at::kDouble);
  context.loss_scale = 0.25;
  if (way.gradient_scale != 1) context.gradient_scale = at::full({1}, way.gradient_scale, at::kFloat);
  ShareResult result;
  std::vector<Saved> saved(units.size()), deferred(units.size());
  Activations flow;
  const bool count = ranks != nullptr && way.mode != Mode::kGenerate,
             bytes = way.type == at::kFloat && sequence == nullptr;  // declared for all tokens
  const auto pieces = [&](const Unit& unit) {
    const auto rows = static_cast<uint64_t>(kSamples * own_tokens);
    const uint64_t most = models::PieceRows(rows, unit.piece_rows());
    return static_cast<int64_t>((rows + most - 1) / most);
  };
  const auto key_bytes =
      static_cast<uint64_t>(kSamples * 2 * SeenKeyElements(inventory.model(), models::TensorRanks(inventory)) *
                            own_tokens * static_cast<int64_t>(c10::elementSize(way.type)));
  // Calls run(), and compares what the unit exchanges in it.
  const auto counting = [&](const Unit& unit, const TensorExchange::Pass& pass, bool backward, const auto& run) {
    std::unique_ptr<ThreadTensorRanks> before, sequence_before;
    if (count) before = std::make_unique<ThreadTensorRanks>(*ranks);
    if (sequence != nullptr) sequence_before = std::make_unique<ThreadTensorRanks>(*sequence);
    run();
    if (count) ExpectCounted(unit, pass, pieces(unit), bytes, *before, *ranks, backward ? " backward" : " forward");
    if (sequence != nullptr) ExpectKeysExchanged(unit, backward, key_bytes, *sequence_before, *sequence);
  };
  std::vector<Activations> inputs;
  for (size_t u = 0; u < units.size(); ++u) {
    const Unit& unit = inventory.units(static_cast<int>(u));
    inputs.push_back(flow);
    if (way.recompute && IsBlock(unit)) context.mode = Mode::kTrainUnsaved;
    const TensorExchange& exchange = unit.tensor_exchange();
    counting(unit, way.mode == Mode::kTrain ? exchange.forward() : exchange.evaluation(), false,
             [&] { flow = units[u]->Forward(context, flow, saved[u]); });
    EXPECT_TRUE(!way.recompute || !IsBlock(unit) || saved[u].tensors.empty());
    context.mode = way.mode;
    if (!flow.empty()) result.outputs.push_back(flow[0].clone());
  }
  if (way.mode == Mode::kGenerate) result.logits = flow.at(0);
  if (way.mode == Mode::kTrain) {
    for (size_t u = units.size(); u-- > 0;) {
      const Unit& unit = inventory.units(static_cast<int>(u));
      if (way.recompute && IsBlock(unit)) {
        context.mode = Mode::kRecompute;
        counting(unit, unit.tensor_exchange().forward(), false,
                 [&] { units[u]->Forward(context, inputs[u], saved[u]); });
        context.mode = Mode::kTrain;
      }
      counting(unit, unit.tensor_exchange().backward(), true, [&] {
        if (way.halves && unit.deferred_bytes() > 0) {
          flow = units[u]->BackwardInputs(context, std::move(saved[u]), flow, deferred[u]);
          result.deferred.push_back(StoredBytes(deferred[u].tensors));
        } else {
          flow = units[u]->Backward(context, std::move(saved[u]), flow);
        }
      });
      if (!flow.empty()) result.flows.push_back(flow[0].clone());
    }
  }
  // By now parameters are released, and other ranks at something else.
  if (!result.deferred.empty()) {
    for (const auto& [name, p] : parameters) at::Tensor(p.value).fill_(NAN);
  }
  const auto exchanged = [&] {
    return std::pair(ranks == nullptr ? 0 : ranks->collectives, sequence == nullptr ? 0 : sequence->collectives);
  };
  const auto collectives = exchanged();
  for (size_t u = units.size(); u-- > 0;) {
    if (!deferred[u].tensors.empty()) units[u]->BackwardWeights(std::move(deferred[u]));
  }
  EXPECT_EQ(exchanged(), collectives);
  for (const auto& [name, p] : parameters) result.gradients[name] = p.gradient;
  result.loss = context.loss_sum.item<double>();
  return result;
}

struct ShareRun {
  std::vector<Inventory> shares;     // by tensor rank
  std::vector<ShareResult> results;  // of each; of several ranks that share sequences, those of one after another
};

// `values`: of the whole model; `size` ranks with a share each, `context` times.
inline ShareRun RunShares(const Model& model, uint32_t size, bool sequence_parallel, const WholeTensors& values,
                          const ShareWay& way, uint32_t context = 1) {
  at::set_num_threads(1);
  Train train;
  *train.mutable_model() = model;
  train.mutable_parallel()->set_tensor(size);
  train.mutable_parallel()->set_sequence_parallel(sequence_parallel);
  const auto divided = models::MakeInventory(train);
  EXPECT_TRUE(divided.ok()) << divided.status();
  ShareRun all;
  for (uint32_t t = 0; t < size; ++t) {
    all.shares.push_back(models::ShareOf(*divided, t));
    for (Unit& unit : *all.shares.back().mutable_units()) unit.set_piece_rows(kPieceRows);
  }
  all.results.resize(size_t{size} * context);
  std::deque<ThreadMeeting> of_shares, of_sequences;
  for (uint32_t c = 0; c < context; ++c) of_shares.emplace_back(size);
  for (uint32_t t = 0; t < size; ++t) of_sequences.emplace_back(context);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size * context; ++rank) {
    threads.emplace_back([&, c = rank / size, t = rank % size] {
      at::set_num_threads(1);
      ThreadTensorRanks ranks(of_shares[c], t), sequence(of_sequences[t], c);
      all.results[c * size + t] =
          RunShare(all.shares[t], values, way, size > 1 ? &ranks : nullptr, context > 1 ? &sequence : nullptr);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

inline double ShareError(const at::Tensor& seen, const at::Tensor& right) {
  const double size = right.to(at::kDouble).norm().item<double>();
  return seen.to(at::kDouble).sub(right.to(at::kDouble)).norm().item<double>() / (size > 0 ? size : 1);
}

inline WholeTensors ValuesOf(const Model& model, at::ScalarType type) {
  return WholeValues(*models::MakeInventory(model), type);
}

inline Model SmallGpt2() {
  Model model;
  Gpt2& m = *model.mutable_gpt2();
  m.set_layers(2), m.set_heads(4), m.set_width(36), m.set_vocabulary(61), m.set_context(16);
  return model;
}

inline std::vector<ShareTrial> ShareTrials() {
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

inline const UnitOptions kVectorRows{}, kDeviceRows{.rows = RowCode::kDevice};

}  // namespace muster::units
