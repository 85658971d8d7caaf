// Trains a small model by every strategy, with ranks as threads of this process, and compares. Sizes divide by nothing;
// released parameters become NaN, to expose a use after release. Included by the tests that do so.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/BFloat16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/hardware.h"
#include "strategies/pipeline/stages.h"
#include "testing/optimizers.h"
#include "worker/collectives/adversarial.h"
#include "worker/collectives/threads.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/engine/mesh_groups.h"
#include "worker/tasks/language_model.h"

namespace muster::engine {

constexpr uint64_t kContext = 16, kVocabulary = 61;
constexpr int kSteps = 12;
constexpr double kAdamRate = 1e-3, kSgdRate = 0.1;

// Sizes that nothing divides.
inline Model TrialModel() {
  Model model;
  Gpt2& g = *model.mutable_gpt2();
  g.set_layers(3), g.set_heads(3), g.set_width(39), g.set_vocabulary(kVocabulary), g.set_context(kContext);
  return model;
}

inline Model LlamaTrialModel() {
  Model model;
  Llama& m = *model.mutable_llama();
  m.set_layers(3), m.set_heads(4), m.set_key_value_heads(2), m.set_width(38), m.set_head_width(10), m.set_inner(75);
  m.set_vocabulary(kVocabulary), m.set_context(kContext), m.set_window(7), m.add_full_layers(1);
  return model;
}

constexpr int64_t kImage = 8, kClasses = 6;
constexpr int kResnetSteps = 5;

// Whose normalizations are by all ranks' samples of a microbatch.
inline Model ResnetTrialModel() {
  Model model;
  Resnet& m = *model.mutable_resnet();
  m.set_depth(8), m.set_width(3), m.set_image(kImage), m.set_classes(kClasses), m.set_sync_batch_norm(true);
  return *models::Resolve(model);
}

struct Trial {
  std::string name;
  std::function<void(Train&)> choose;
  uint32_t ranks = 1;
  uint32_t microbatch = 7;
  bool sgd = false;
  Dtype compute = DTYPE_FP32, reduce = DTYPE_FP32, params = DTYPE_FP32;
  double loss_scale = 65536;              // with fp16: the first one
  bool adversarial = false;               // groups that poison what is in flight
  bool ahead = false;                     // as many steps in flight as the engine takes
  bool scheduled = false;                 // another learning rate in each step, all exact in fp32
  bool rebuilds = false;                  // compute parameters from the master weights before each step
  bool step_beside_copies = false;        // one more, after the copies of the final state are issued
  std::function<void(Config&)> set = {};  // of every rank
  Model model = TrialModel();
  double sgd_limit = 1e-6, adamw_limit = 1e-5;  // on a tensor's relative error
  std::string optimizer = {};  // one that updates whole tensors, in place of the above, with placement: whole
  // Of images: one rank's microbatches hold what these ranks' microbatches hold together; 0: the samples in their
  // order.
  uint32_t as_ranks = 0, as_microbatch = 0;
  uint32_t stages = 1;         // of a pipeline, each of ranks / stages ranks
  uint32_t tensor = 1;         // ranks that compute each unit together
  uint32_t context = 1;        // data ranks that share each sequence
  uint32_t ranks_on_node = 0;  // with hierarchy: always; 0: one node

  std::vector<RankPlace> places() const {
    return strategies::FullNodes(ranks, ranks_on_node > 0 ? ranks_on_node : ranks, /*memory_bytes=*/0);
  }
  // Whose replicas may be shards, which makes no difference to data.
  Mesh mesh() const {
    return {.pipeline = stages, .replica = ranks / stages / tensor, .tensor = tensor, .context = context};
  }
  // A rank's share of `samples`.
  strategies::Share ShareOf(uint32_t samples, uint32_t rank) const {
    return strategies::ShareOf(samples, mesh(), rank);
  }
};

constexpr uint32_t kSequences = 7;

inline Train MakeTrain(const Trial& trial) {
  Train train;
  *train.mutable_model() = trial.model;
  train.mutable_batch()->set_sequences(kSequences);
  train.mutable_batch()->set_microbatch(trial.microbatch);
  train.mutable_precision()->set_compute(trial.compute);
  train.mutable_precision()->set_params(trial.params);
  train.mutable_precision()->set_reduce(trial.reduce);
  if (trial.compute == DTYPE_FP16 || trial.reduce == DTYPE_FP16) {
    LossScaling& scaling = *train.mutable_precision()->mutable_loss_scaling();
    scaling.set_initial(trial.loss_scale), scaling.set_minimum(1);
    scaling.set_growth(2), scaling.set_backoff(0.5), scaling.set_growth_interval(2000);
  }
  Optimizer& o = *train.mutable_optimizer();
  if (trial.sgd) {
    o.mutable_sgd()->set_momentum(0.9);
  } else {
    o.mutable_adamw()->set_beta1(0.9);
    o.mutable_adamw()->set_beta2(0.999);
    o.mutable_adamw()->set_eps(1e-8);
  }
  if (!trial.optimizer.empty()) o = OptimizerOf(trial.optimizer, kAdamRate);
  o.set_weight_decay(0.1);
  o.set_clip_norm(1.0);
  train.set_seed(3);
  if (trial.stages > 1) train.mutable_parallel()->set_pipeline(trial.stages);
  if (trial.tensor > 1) train.mutable_parallel()->set_tensor(trial.tensor);
  if (trial.context > 1) train.mutable_parallel()->set_context(trial.context);
  if (trial.ranks_on_node > 0) train.mutable_communication()->set_hierarchy(HIERARCHY_ALWAYS);
  trial.choose(train);
  if (!trial.optimizer.empty()) {
    Strategy& strategy = *train.mutable_strategy();
    if (strategy.has_zero()) strategy.mutable_zero()->set_placement(PLACEMENT_WHOLE);
    if (strategy.has_fsdp()) strategy.mutable_fsdp()->set_placement(PLACEMENT_WHOLE);
  }
  return train;
}

inline std::vector<uint32_t> Sequences(uint64_t step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  std::vector<uint32_t> tokens(kSequences * (kContext + 1));
  for (uint32_t& t : tokens) t = static_cast<uint32_t>(random() % kVocabulary);
  return tokens;
}

struct Curve {
  std::vector<double> losses, norms;
  std::vector<double> loss_scales;
  double evaluation = 0;
  std::map<std::string, std::vector<float>> weights;  // by tensor, assembled from its owners
  std::map<std::string, std::vector<float>> state;    // all of it, by kind and tensor
  size_t in_bf16 = 0;                                 // elements of rank 0 that are stored in bf16
};

// Where a run begins, and how long it is.
struct Leg {
  const Curve* from = nullptr;
  int first = 0, steps = kSteps;
};

// The groups of every rank, by number, between threads.
struct Groups {
  Groups(const Inventory& inventory, const strategies::Layout& layout, bool adversarial = false)
      : of(layout.mesh.ranks()) {
    std::map<std::string, std::vector<std::unique_ptr<collectives::Group>>> by_name;  // each for all of its ranks
    for (uint32_t rank = 0; rank < of.size(); ++rank) {
      const pipeline::StageEdges edges =
          pipeline::EdgesOf(inventory, pipeline::StagesOf(layout.table), layout.roles[rank].stage());
      std::vector<GroupSpec> specs = edges.groups;
      for (const GroupSpec& level : LevelGroups(layout.mesh)) specs.push_back(level);
      auto made = MakeGroups(
          layout.mesh, specs, rank,
          [&](const GroupSpec& group, const Membership& own) -> absl::StatusOr<std::unique_ptr<collectives::Group>> {
            auto& members = by_name[NameOf(group, own)];
            const int size = static_cast<int>(own.size);
            if (members.empty()) {
              members = adversarial ? collectives::MakeAdversarial(size, absl::Seconds(60))
                                    : collectives::MakeThreads(size, absl::Seconds(60));
            }
            return std::move(members[own.index]);
          });
      of[rank] = made->by_number;
      for (auto& group : made->owned) owned.push_back(std::move(group));
    }
  }
  std::vector<std::vector<collectives::Group*>> of;
  std::vector<std::unique_ptr<collectives::Group>> owned;
};

// The samples in the order in which one rank computes what `ranks` compute: microbatch by microbatch of all of them.
inline std::vector<int64_t> MicrobatchOrder(uint32_t ranks, uint32_t microbatch) {
  std::vector<int64_t> order;
  for (uint64_t begin = 0; order.size() < kSequences; begin += microbatch) {
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const strategies::Share share = strategies::ShareOf(kSequences, ranks, rank);
      for (uint64_t i = begin; i < std::min<uint64_t>(begin + microbatch, share.sequences); ++i) {
        order.push_back(static_cast<int64_t>(share.first + i));
      }
    }
  }
  return order;
}

// Of named tensors: those from `first`.
inline Batch TensorBatch(const ::muster::Task& task, uint64_t step, uint32_t samples, const strategies::Share& share) {
  std::mt19937 random(static_cast<uint32_t>(step));
  std::normal_distribution<float> normal;
  Batch batch{.samples = share.sequences, .global_samples = samples};
  for (const BatchTensor& described : task.tensors()) {
    std::vector<int64_t> shape = {samples};
    shape.insert(shape.end(), described.shape().begin(), described.shape().end());
    const at::Tensor values = at::empty(shape, DtypeOf(described));
    for (int64_t i = 0; i < values.numel(); ++i) {
      if (described.type() == BatchTensor::INT64) {
        values.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random() % described.bound());
      } else {
        values.mutable_data_ptr<float>()[i] = normal(random);
      }
    }
    batch.tensors.Set(described.name(),
                      values.narrow(0, static_cast<int64_t>(share.first), static_cast<int64_t>(share.sequences)));
  }
  return batch;
}

// A rank's share of `samples` samples, all of which are a function of `step`.
inline Batch TrialBatch(const Trial& trial, uint64_t step, uint32_t samples, uint32_t rank) {
  const strategies::Share share = trial.ShareOf(samples, rank);
  if (const ::muster::Task& task = trial.model.custom().task(); task.name() == models::kTensors) {
    return TensorBatch(task, step, samples, share);
  }
  if (!trial.model.has_resnet()) {
    const std::vector<uint32_t> all = Sequences(step);
    const auto own = absl::MakeSpan(all).subspan(share.first * (kContext + 1), share.sequences * (kContext + 1));
    const uint32_t context_rank = ContextRankAt(trial.mesh(), CoordinateOf(trial.mesh(), rank));
    return tasks::TokenBatch(share.sequences, own, samples, trial.context, context_rank);
  }
  std::mt19937 random(static_cast<uint32_t>(step));
  std::normal_distribution<float> normal;
  at::Tensor images = at::empty({samples, 3, kImage, kImage}), labels = at::empty({samples}, at::kLong);
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t label = static_cast<int64_t>(random() % kClasses);
    labels[i].fill_(label);
    // Brightness by class, and a mean far from zero.
    float* pixels = images[i].mutable_data_ptr<float>();
    for (int64_t p = 0; p < 3 * kImage * kImage; ++p) pixels[p] = normal(random) + 1 + static_cast<float>(label) / 2;
  }
  if (trial.as_ranks > 0 && samples == kSequences) {
    const at::Tensor order = at::tensor(MicrobatchOrder(trial.as_ranks, trial.as_microbatch));
    images = images.index_select(0, order), labels = labels.index_select(0, order);
  }
  const int64_t first = static_cast<int64_t>(share.first), count = static_cast<int64_t>(share.sequences);
  return {.samples = share.sequences,
          .tensors = {{models::kInputs, images.narrow(0, first, count)},
                      {models::kTargets, labels.narrow(0, first, count)}},
          .global_samples = samples};
}

// Issues the next step of `rank`, on its share.
inline absl::Status IssueStep(const Trial& trial, uint32_t rank, Engine& engine) {
  const uint64_t step = engine.step() + static_cast<uint64_t>(engine.in_flight());
  Batch batch = TrialBatch(trial, step, kSequences, rank);
  batch.first_sample = trial.ShareOf(kSequences, rank).first;
  if (trial.scheduled) return engine.Issue(batch, static_cast<double>(step % 5 + 1) * (trial.sgd ? 0x1p-5 : 0x1p-11));
  return engine.Issue(batch, trial.sgd ? kSgdRate : kAdamRate);
}

inline absl::StatusOr<StepResult> TakeStep(const Trial& trial, uint32_t rank, Engine& engine) {
  const absl::Status issued = IssueStep(trial, rank, engine);
  return issued.ok() ? engine.Await() : issued;
}

// Names what each replica has for itself by it.
inline std::string StateName(const StateView& view) {
  return absl::StrCat(view.kind, view.replica < 0 ? "" : absl::StrCat(" of replica ", view.replica), " ", view.tensor);
}

inline void Load(const Leg& leg, Engine& engine) {
  for (StateView& view : engine.State()) {
    const std::vector<float>& all = leg.from->state.at(StateName(view));
    for (size_t i = 0; i < view.values.size(); ++i) view.values[i] = all[view.box.Whole(view.begin + i)];
    for (size_t i = 0; i < view.bf16.size(); ++i) {
      view.bf16[i] = c10::BFloat16(all[view.box.Whole(view.begin + i)]).x;
    }
  }
  ASSERT_TRUE(engine.Push().ok());
  ASSERT_TRUE(engine.SetProgress(static_cast<uint64_t>(leg.first), engine.update_state()).ok());
}

inline void RunRank(const Trial& trial, uint32_t rank, const Leg& leg, Engine& engine, Curve& curve) {
  if (leg.from != nullptr) Load(leg, engine);
  const int ahead = trial.ahead ? engine.most_in_flight() - 1 : 0;
  for (int step = 0, issued = 0; step < leg.steps; ++step) {
    for (; issued < std::min(leg.steps, step + ahead + 1); ++issued) {
      if (trial.rebuilds) {
        ASSERT_TRUE(engine.Pull().ok() && engine.Push().ok()) << trial.name;
      }
      const absl::Status status = IssueStep(trial, rank, engine);
      ASSERT_TRUE(status.ok()) << trial.name << ": " << status;
    }
    const auto result = engine.Await();
    ASSERT_TRUE(result.ok()) << trial.name << ": " << result.status();
    curve.losses.push_back(result->loss);
    curve.norms.push_back(result->skipped ? 0 : result->gradient_norm);  // NaN equals nothing
    curve.loss_scales.push_back(result->loss_scale);
  }
  const auto loss = engine.Evaluate(TrialBatch(trial, 1000, 5, rank));
  ASSERT_TRUE(loss.ok()) << trial.name << ": " << loss.status();
  curve.evaluation = loss->loss;
  ASSERT_TRUE(engine.BeginPull().ok());
  if (trial.step_beside_copies) {
    const auto result = TakeStep(trial, rank, engine);
    ASSERT_TRUE(result.ok()) << trial.name << ": " << result.status();
  }
  ASSERT_TRUE(engine.AwaitPull().ok());
  for (const StateView& view : engine.State()) {
    uint64_t elements = 1;
    for (const uint64_t n : view.shape) elements *= n;
    std::vector<float>& tensor = curve.state[StateName(view)];
    tensor.resize(elements, std::nanf(""));
    for (size_t i = 0; i < view.values.size(); ++i) tensor[view.box.Whole(view.begin + i)] = view.values[i];
    for (size_t i = 0; i < view.bf16.size(); ++i) {
      tensor[view.box.Whole(view.begin + i)] = c10::BFloat16(view.bf16[i], c10::BFloat16::from_bits());
    }
    curve.in_bf16 += view.bf16.size();
    if (view.kind == "parameter") curve.weights[view.tensor] = tensor;
  }
}

// Adds what another rank owns; replicas must be equal.
inline void Join(const std::string& name, const std::map<std::string, std::vector<float>>& from,
                 std::map<std::string, std::vector<float>>& to) {
  for (const auto& [tensor, values] : from) {
    std::vector<float>& into = to[tensor];
    into.resize(values.size(), std::nanf(""));
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) continue;
      EXPECT_TRUE(std::isnan(into[i]) || into[i] == values[i]) << name << ": replicas differ in " << tensor;
      into[i] = values[i];
    }
  }
}

// Rank 0's results with the weights of all ranks; all ranks must have the same results.
inline Curve Train(const Trial& trial, const Leg& leg = {}) {
  const ::muster::Train train = MakeTrain(trial);
  const Inventory inventory = *models::MakeInventory(train);
  const auto layout = strategies::MakeLayout(train, inventory, trial.places());
  EXPECT_TRUE(layout.ok()) << trial.name << ": " << layout.status();
  if (!layout.ok()) return {};
  const Groups groups(inventory, *layout, trial.adversarial);
  std::vector<Curve> curves(trial.ranks);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < trial.ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Config config = Configure(train, inventory, trial.ranks, rank, trial.ranks_on_node)->config;
      if (trial.ranks > 1) config.groups = groups.of[rank];
      config.poison = true;
      if (trial.set) trial.set(config);
      const auto engine = Engine::Create(config);
      ASSERT_TRUE(engine.ok()) << trial.name << ": " << engine.status();
      RunRank(trial, rank, leg, **engine, curves[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t rank = 1; rank < trial.ranks; ++rank) {
    EXPECT_EQ(curves[rank].losses, curves[0].losses) << trial.name;
    EXPECT_EQ(curves[rank].norms, curves[0].norms) << trial.name;
    EXPECT_EQ(curves[rank].loss_scales, curves[0].loss_scales) << trial.name;
    EXPECT_EQ(curves[rank].evaluation, curves[0].evaluation) << trial.name;
    Join(trial.name, curves[rank].weights, curves[0].weights);
    Join(trial.name, curves[rank].state, curves[0].state);
  }
  return curves[0];
}

inline double Relative(const std::vector<double>& a, const std::vector<double>& b) {
  double most = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < a.size() && i < b.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return most;
}

// The bias of keys has a true gradient of zero (softmax is invariant to it), so Adam amplifies rounding noise there.
inline bool IsNoise(const std::string& tensor, size_t element, size_t elements) {
  return tensor.ends_with("c_attn.bias") && element >= elements / 3 && element < 2 * elements / 3;
}

inline void ExpectSameWeights(const Trial& trial, const Curve& seen, const Curve& expected) {
  const double rate = trial.sgd ? kSgdRate : kAdamRate;
  ASSERT_EQ(seen.weights.size(), expected.weights.size()) << trial.name;
  for (const auto& [tensor, right] : expected.weights) {
    const std::vector<float>& ours = seen.weights.at(tensor);
    ASSERT_EQ(ours.size(), right.size()) << trial.name << " " << tensor;
    double difference = 0, norm = 0, most = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      ASSERT_FALSE(std::isnan(ours[i])) << trial.name << ": no rank owns " << tensor << " " << i;
      if (!trial.sgd && IsNoise(tensor, i, right.size())) continue;
      const double d = static_cast<double>(ours[i]) - right[i];
      difference += d * d;
      norm += static_cast<double>(right[i]) * right[i];
      most = std::max(most, std::abs(d));
    }
    EXPECT_LE(std::sqrt(difference), (trial.sgd ? trial.sgd_limit : trial.adamw_limit) * std::sqrt(norm))
        << trial.name << " " << tensor;
    EXPECT_LE(most, 0.02 * rate) << trial.name << " " << tensor;
  }
}

inline void ExpectSameBuffers(const Trial& trial, const Curve& seen, const Curve& expected) {
  for (const auto& [name, right] : expected.state) {
    if (!name.starts_with("buffer ")) continue;
    const std::vector<float>& ours = seen.state.at(name);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      difference += std::pow(static_cast<double>(ours[i]) - right[i], 2), norm += std::pow(right[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm)) << trial.name << " " << name;
  }
}

inline void ExpectSame(const Trial& trial, const Curve& seen, const Curve& expected) {
  EXPECT_LE(Relative(seen.losses, expected.losses), 5e-6) << trial.name;
  EXPECT_LE(Relative(seen.norms, expected.norms), 3e-5) << trial.name;
  ExpectSameBuffers(trial, seen, expected);
  EXPECT_LE(std::abs(seen.evaluation - expected.evaluation), 5e-6 * expected.evaluation) << trial.name;
  ExpectSameWeights(trial, seen, expected);
}

// How far the weights are from `expected`, over how far training moved those from `initial`: 1 for a rank that never
// updates, whatever its losses are.
inline double UpdateError(const Curve& seen, const Curve& expected, const Curve& initial) {
  double difference = 0, moved = 0;
  for (const auto& [tensor, right] : expected.weights) {
    const std::vector<float>&ours = seen.weights.at(tensor), &from = initial.weights.at(tensor);
    for (size_t i = 0; i < right.size(); ++i) {
      if (IsNoise(tensor, i, right.size())) continue;
      difference += std::pow(static_cast<double>(ours[i]) - right[i], 2);
      moved += std::pow(static_cast<double>(right[i]) - from[i], 2);
    }
  }
  return std::sqrt(difference / moved);
}

inline void Single(::muster::Train& train) { train.mutable_strategy()->mutable_single(); }

// What others are compared with.
inline Trial OneRank(const Model& model, bool sgd) {
  return {.name = "single", .choose = Single, .sgd = sgd, .model = model};
}

using Choose = std::function<void(::muster::Train&)>;

inline Choose ZeroStage(uint32_t stage, Accumulation accumulation = ACCUMULATION_REDUCE, uint32_t prefetch = 1) {
  return [=](::muster::Train& train) {
    Zero& zero = *train.mutable_strategy()->mutable_zero();
    zero.set_stage(stage);
    zero.set_placement(PLACEMENT_WHOLE);
    zero.set_accumulation(accumulation);
    zero.set_prefetch(prefetch);
    zero.set_bucket_mib(0.05);
  };
}

inline Choose FsdpOf(Reshard reshard, const std::function<void(::muster::Train&, Fsdp&)>& more = nullptr) {
  return [=](::muster::Train& train) {
    Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
    fsdp.set_reshard(reshard);
    fsdp.set_placement(PLACEMENT_EVEN);
    fsdp.set_accumulation(ACCUMULATION_REDUCE);
    fsdp.set_prefetch(1);
    if (more) more(train, fsdp);
  };
}

inline const std::vector<std::pair<std::string, Choose>>& Strategies() {
  using T = ::muster::Train;
  static const auto* const all = new std::vector<std::pair<std::string, Choose>>{
      {"ddp", [](T& t) { t.mutable_strategy()->mutable_ddp()->set_bucket_mib(0.05); }},
      {"zero 1", ZeroStage(1)},
      {"zero 2", ZeroStage(2)},
      {"zero 2 hold", ZeroStage(2, ACCUMULATION_HOLD)},
      {"zero 3", ZeroStage(3)},
      {"zero 3 hold, prefetch 0", ZeroStage(3, ACCUMULATION_HOLD, 0)},
      {"zero 3 ragged",
       [](T& t) { ZeroStage(3)(t), t.mutable_strategy()->mutable_zero()->set_placement(PLACEMENT_RAGGED); }},
      {"full_shard", FsdpOf(RESHARD_FULL_SHARD)},
      {"full_shard by rows", FsdpOf(RESHARD_FULL_SHARD, [](T&, Fsdp& f) { f.set_placement(PLACEMENT_ROWS); })},
      {"full_shard hold", FsdpOf(RESHARD_FULL_SHARD, [](T&, Fsdp& f) { f.set_accumulation(ACCUMULATION_HOLD); })},
      {"full_shard prefetch 3", FsdpOf(RESHARD_FULL_SHARD, [](T&, Fsdp& f) { f.set_prefetch(3); })},
      {"full_shard prefetch 0", FsdpOf(RESHARD_FULL_SHARD, [](T&, Fsdp& f) { f.set_prefetch(0); })},
      {"full_shard wrapped", FsdpOf(RESHARD_FULL_SHARD, [](T&, Fsdp& f) { f.set_wrap_mib(0.16); })},
      {"full_shard recomputed", FsdpOf(RESHARD_FULL_SHARD, [](T& t, Fsdp&) { t.set_activation_checkpointing(true); })},
      {"shard_grad_op", FsdpOf(RESHARD_SHARD_GRAD_OP)},
      {"shard_grad_op hold, wrapped", FsdpOf(RESHARD_SHARD_GRAD_OP,
                                             [](T&, Fsdp& f) {
                                               f.set_accumulation(ACCUMULATION_HOLD);
                                               f.set_wrap_mib(1);
                                             })},
      {"no_shard", FsdpOf(RESHARD_NO_SHARD)},
      {"hybrid", FsdpOf(RESHARD_HYBRID, [](T&, Fsdp& f) { f.set_shard_ranks(2); })},
      {"hybrid hold", FsdpOf(RESHARD_HYBRID,
                             [](T&, Fsdp& f) {
                               f.set_shard_ranks(2);
                               f.set_accumulation(ACCUMULATION_HOLD);
                             })},
      {"hybrid of one", FsdpOf(RESHARD_HYBRID, [](T&, Fsdp& f) { f.set_shard_ranks(1); })},
  };
  return *all;
}

inline Choose StrategyOf(const std::string& name) {
  for (const auto& [its_name, choose] : Strategies()) {
    if (its_name == name) return choose;
  }
  ADD_FAILURE() << name;
  return Single;
}

// Of pipelines, with their chunks on a stage.
inline const std::vector<std::pair<std::string, std::pair<PipelineSchedule, uint32_t>>>& Schedules() {
  static const auto* const all = new std::vector<std::pair<std::string, std::pair<PipelineSchedule, uint32_t>>>{
      {"gpipe", {PIPELINE_SCHEDULE_GPIPE, 1}},
      {"1f1b", {PIPELINE_SCHEDULE_1F1B, 1}},
      {"interleaved", {PIPELINE_SCHEDULE_INTERLEAVED, 2}},
      {"zero bubble", {PIPELINE_SCHEDULE_ZERO_BUBBLE, 1}},
      {"zero bubble in a V", {PIPELINE_SCHEDULE_ZERO_BUBBLE, 2}},
  };
  return *all;
}

inline Choose By(PipelineSchedule schedule, uint32_t chunks, Choose strategy) {
  return [=](::muster::Train& train) {
    strategy(train);
    train.mutable_pipeline()->set_schedule(schedule);
    train.mutable_pipeline()->set_chunks(chunks);
  };
}

}  // namespace muster::engine
