// Residual networks beside torchvision's and plain PyTorch's: the same weights and images, losses, gradient norms,
// running statistics and evaluation. Several ranks beside DistributedDataParallel, whose buffers are the first rank's.
#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/defaults.h"
#include "testing/temporary_folder.h"
#include "tests/parity/peer.h"
#include "tests/parity/ranks.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::parity {
namespace {

using nlohmann::json;

struct ResnetTrial {
  uint32_t depth = 8, width = 4, image = 16, classes = 7;
  ResnetStem stem = RESNET_STEM_CIFAR;
  SetStrategy strategy = Ddp;
  uint32_t ranks = 1, samples = 12, microbatch = 12, steps = 12;
  double smoothing = 0, lr = 0.05;
  bool recompute = false;
  bool synchronized = false;  // batch normalization
  bool peer_is_one = false;   // the peer computes the whole batch in one process, by torch.nn.BatchNorm2d
  std::string mistake = {};
  uint32_t seed = 3;  // of weights and images
  std::vector<std::string> freeze = {};
};

struct Outcome {
  Curve curve;
  double loss = 0, top1 = 0, top5 = 0;  // of the evaluation
  std::vector<float> tensors;           // parameters, then buffers
};

class Images {
 public:
  explicit Images(const ResnetTrial& trial) : trial_(trial) {
    std::mt19937 random(trial.seed);
    std::normal_distribution<float> normal;
    const size_t samples = trial.steps * trial.samples;
    labels_.resize(samples);
    for (int64_t& label : labels_) label = static_cast<int64_t>(random() % trial.classes);
    pixels_.resize(samples * Pixels());
    // Brightness by class, so that there is something to learn.
    for (size_t i = 0; i < pixels_.size(); ++i) {
      pixels_[i] = normal(random) + 0.3f * static_cast<float>(labels_[i / Pixels()]);
    }
  }
  engine::Batch Batch(uint64_t first, uint64_t count) {
    const int64_t n = static_cast<int64_t>(count), size = trial_.image;
    return {
        .samples = count,
        .tensors = {{models::kInputs, at::from_blob(pixels_.data() + first * Pixels(), {n, 3, size, size}, at::kFloat)},
                    {models::kTargets, at::from_blob(labels_.data() + first, {n}, at::kLong)}},
        .global_samples = trial_.samples};
  }
  void Write(const std::string& path) const {
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(pixels_.data()), static_cast<std::streamsize>(4 * pixels_.size()));
    out.write(reinterpret_cast<const char*>(labels_.data()), static_cast<std::streamsize>(8 * labels_.size()));
  }

 private:
  size_t Pixels() const { return size_t{3} * trial_.image * trial_.image; }
  const ResnetTrial& trial_;
  std::vector<float> pixels_;
  std::vector<int64_t> labels_;
};

Train MakeResnetTrain(const ResnetTrial& trial) {
  Train train;
  Resnet& m = *train.mutable_model()->mutable_resnet();
  m.set_depth(trial.depth), m.set_image(trial.image), m.set_classes(trial.classes), m.set_stem(trial.stem);
  if (trial.depth % 6 == 2 && trial.depth != 50) m.set_width(trial.width);
  m.set_sync_batch_norm(trial.synchronized);
  *train.mutable_model() = models::Resolve(train.model()).value();
  if (trial.ranks == 1) {
    train.mutable_strategy()->mutable_single();
  } else {
    trial.strategy(*train.mutable_strategy());
    strategies::FillDefaults(train.optimizer(), *train.mutable_strategy());
  }
  train.mutable_batch()->set_sequences(trial.samples);
  train.mutable_batch()->set_microbatch(trial.microbatch);
  train.set_activation_checkpointing(trial.recompute);
  train.set_label_smoothing(trial.smoothing);
  Optimizer& o = *train.mutable_optimizer();
  o.mutable_sgd()->set_momentum(0.9);
  o.set_lr(trial.lr);
  o.set_weight_decay(5e-3);
  o.set_clip_norm(1.0);
  train.set_seed(trial.seed);
  for (const std::string& pattern : trial.freeze) train.add_freeze(pattern);
  return train;
}

// A whole tensor at its place among all, parameters first.
void Collect(engine::Engine& engine, const Inventory& inventory, bool buffers, std::vector<float>& all) {
  std::map<std::string, size_t> begins;
  size_t size = 0;
  for (const bool of_buffers : {false, true}) {
    for (const Unit& unit : inventory.units()) {
      for (const Tensor& tensor : of_buffers ? unit.buffers() : unit.tensors()) {
        begins[tensor.name()] = size;
        size += models::Elements(tensor);
      }
    }
  }
  all.resize(size);
  for (const engine::StateView& view : engine.State()) {
    if (view.kind != "parameter" && (view.kind != "buffer" || !buffers)) continue;
    std::copy(view.values.begin(), view.values.end(),
              all.begin() + static_cast<ptrdiff_t>(begins.at(view.tensor) + view.begin));
  }
}

json TensorsOf(const Inventory& inventory) {
  json tensors = json::array();
  for (const bool buffers : {false, true}) {
    for (const Unit& unit : inventory.units()) {
      for (const Tensor& tensor : buffers ? unit.buffers() : unit.tensors()) {
        tensors.push_back({tensor.name(), std::vector<uint64_t>(tensor.shape().begin(), tensor.shape().end())});
      }
    }
  }
  return tensors;
}

json FrozenOf(const Inventory& inventory) {
  json names = json::array();
  for (const Unit& unit : inventory.units()) {
    for (const Tensor& tensor : unit.tensors()) {
      if (tensor.frozen()) names.push_back(tensor.name());
    }
  }
  return names;
}

Outcome Ours(const ResnetTrial& trial) {
  const Train train = MakeResnetTrain(trial);
  const Inventory inventory = models::MakeInventory(train).value();
  collectives::MemoryKeyValue rendezvous;
  Outcome outcome;
  Images images(trial);
  std::mutex mutex;
  const auto run = [&](uint32_t rank) {
    engine::Configured made = engine::Configure(train, inventory, trial.ranks, rank).value();
    const RankGroups groups(made, rendezvous);
    made.config.groups = groups.by_number();
    made.config.check_accesses = true;
    const auto engine = engine::Engine::Create(made.config).value();
    const strategies::Share share = strategies::ShareOf(trial.samples, trial.ranks, rank);
    for (uint32_t step = 0; step < trial.steps; ++step) {
      const auto result = engine->Step(images.Batch(step * trial.samples + share.first, share.sequences), trial.lr);
      ASSERT_TRUE(result.ok()) << result.status();
      if (rank != 0) continue;
      outcome.curve.losses.push_back(result->loss);
      outcome.curve.norms.push_back(result->gradient_norm);
    }
    const auto found = engine->Evaluate(images.Batch(share.first, share.sequences));
    ASSERT_TRUE(found.ok()) << found.status();
    const std::lock_guard<std::mutex> lock(mutex);
    if (rank == 0) outcome.loss = found->loss, outcome.top1 = found->metrics[0], outcome.top5 = found->metrics[1];
    Collect(*engine, inventory, /*buffers=*/rank == 0, outcome.tensors);
  };
  RunRanks(trial.ranks, run);
  return outcome;
}

Outcome Theirs(const ResnetTrial& trial) {
  const TemporaryFolder folder;
  ResnetTrial alone = trial;
  alone.ranks = 1;
  const Train train = MakeResnetTrain(alone);
  const Resnet& m = train.model().resnet();
  const Inventory inventory = models::MakeInventory(train).value();
  const auto engine = engine::Engine::Create(engine::Configure(train, inventory).value().config).value();
  std::vector<float> tensors;
  Collect(*engine, inventory, true, tensors);
  const std::string weights = folder.path() + "/weights", data = folder.path() + "/data", out = folder.path() + "/out";
  std::ofstream(weights, std::ios::binary)
      .write(reinterpret_cast<const char*>(tensors.data()), static_cast<std::streamsize>(4 * tensors.size()));
  Images(trial).Write(data);
  const auto answer = Peer::Get().AskResnet({{"depth", m.depth()},
                                             {"width", m.width()},
                                             {"classes", m.classes()},
                                             {"channels", m.channels()},
                                             {"image", m.image()},
                                             {"stem", m.stem() == RESNET_STEM_CIFAR ? "cifar" : "imagenet"},
                                             {"bn_momentum", m.batch_norm_momentum()},
                                             {"sync_bn", trial.synchronized},
                                             {"ranks", trial.peer_is_one ? 1 : trial.ranks},
                                             {"samples", trial.samples},
                                             {"microbatch", trial.peer_is_one ? trial.samples : trial.microbatch},
                                             {"steps", trial.steps},
                                             {"lr", trial.lr},
                                             {"momentum", 0.9},
                                             {"weight_decay", 5e-3},
                                             {"clip_norm", 1.0},
                                             {"label_smoothing", trial.smoothing},
                                             {"frozen", FrozenOf(inventory)},
                                             {"mistake", trial.mistake},
                                             {"data", data},
                                             {"weights", weights},
                                             {"out", out},
                                             {"tensors", TensorsOf(inventory)}});
  EXPECT_TRUE(answer.ok()) << answer.status();
  if (!answer.ok()) return {};
  Outcome outcome{.curve = {(*answer)["losses"], (*answer)["norms"]}};
  outcome.loss = (*answer)["evaluation"]["loss"];
  outcome.top1 = (*answer)["evaluation"]["top1"];
  outcome.top5 = (*answer)["evaluation"]["top5"];
  outcome.tensors.resize(tensors.size());
  std::ifstream(out, std::ios::binary)
      .read(reinterpret_cast<char*>(outcome.tensors.data()), static_cast<std::streamsize>(4 * tensors.size()));
  return outcome;
}

// The largest difference of a tensor's elements, relative to the tensor's largest number in all.
double TensorDifference(const Outcome& ours, const Outcome& theirs) {
  double difference = 0, largest = 0;
  EXPECT_EQ(ours.tensors.size(), theirs.tensors.size());
  for (size_t i = 0; i < ours.tensors.size(); ++i) {
    difference = std::max(difference, std::abs(static_cast<double>(ours.tensors[i]) - theirs.tensors[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs.tensors[i])));
  }
  std::printf("tensors: %.2g of %.2g\n", difference, largest);
  return difference / largest;
}

constexpr double kTensorLimit = 2e-5;

// Whether all is the same. `difference`: of the curves.
bool AreSame(const ResnetTrial& trial, Difference* difference = nullptr) {
  const Outcome ours = Ours(trial), theirs = Theirs(trial);
  const Difference d = Compare(ours.curve, theirs.curve);
  if (difference != nullptr) *difference = d;
  const double tensors = TensorDifference(ours, theirs), loss = std::abs(ours.loss - theirs.loss) / theirs.loss;
  if (trial.steps > 3) {
    EXPECT_LT(ours.curve.losses.back(), ours.curve.losses.front());
  }
  const bool same = Same(d) && tensors <= kTensorLimit && loss <= 1e-4 && std::abs(ours.top1 - theirs.top1) <= 1e-6 &&
                    std::abs(ours.top5 - theirs.top5) <= 1e-6;
  // What differs must do so each time: a race or a forgotten wait would not.
  if (!same) {
    EXPECT_EQ(Ours(trial).tensors, ours.tensors);
  }
  return same;
}

// A number so near to a rectifier's zero that it rounds to the other side changes a gradient by more than any limit.
// Which seeds meet one depends on the CPU. A mistake is there with each.
void ExpectSameResnet(ResnetTrial trial, Difference* difference = nullptr) {
  constexpr uint32_t kSeeds = 3;
  for (uint32_t more = 0; more < kSeeds; ++more, ++trial.seed) {
    if (AreSame(trial, difference)) return;
  }
  ADD_FAILURE() << "the difference is above the limits with each of " << kSeeds << " seeds";
}

void ExpectCaughtResnet(const ResnetTrial& trial) {
  const Outcome ours = Ours(trial), theirs = Theirs(trial);
  const Difference d = Compare(ours.curve, theirs.curve);
  ASSERT_TRUE(std::isfinite(d.loss)) << "nothing was compared";
  EXPECT_TRUE(!Same(d) || TensorDifference(ours, theirs) > kTensorLimit ||
              std::abs(ours.loss - theirs.loss) > 1e-4 * theirs.loss)
      << trial.mistake << " would not be seen";
}

TEST(ResnetParity, OfSmallImages) { ExpectSameResnet({.depth = 14}); }
TEST(ResnetParity, LabelSmoothing) { ExpectSameResnet({.smoothing = 0.1}); }
TEST(ResnetParity, AccumulatesByMicrobatch) { ExpectSameResnet({.samples = 11, .microbatch = 4}); }
TEST(ResnetParity, RecomputationCountsOnce) { ExpectSameResnet({.recompute = true}); }
// Deep ones with few images to normalize by amplify rounding, so they learn slowly here.
TEST(ResnetParity, TorchvisionsOfBasicBlocks) {
  ExpectSameResnet({.depth = 18, .samples = 6, .microbatch = 6, .steps = 3, .lr = 1e-4});
}
TEST(ResnetParity, TorchvisionsOfBottlenecksForImagenet) {
  ExpectSameResnet(
      {.depth = 50, .image = 64, .stem = RESNET_STEM_IMAGENET, .samples = 6, .microbatch = 6, .steps = 1, .lr = 1e-4});
}
TEST(ResnetParity, SeveralRanksAreDistributedDataParallel) {
  ExpectSameResnet({.ranks = 2});
  ExpectSameResnet({.ranks = 3, .samples = 13, .microbatch = 3, .smoothing = 0.05});
}
TEST(ResnetParity, ShardedRanksToo) {
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_fsdp(); }, .ranks = 2});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_zero()->set_stage(3); }, .ranks = 3, .samples = 13});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_zero()->set_stage(1); }, .ranks = 2, .recompute = true});
}
TEST(StrategyTable, OfResnets) {
  for (const NamedStrategy& strategy : StrategyTable()) {
    for (const uint32_t accumulation : {1u, 3u}) {
      const uint32_t share = (12 + strategy.ranks - 1) / strategy.ranks;
      Difference d;
      ExpectSameResnet({.strategy = strategy.set,
                        .ranks = strategy.ranks,
                        .microbatch = (share + accumulation - 1) / accumulation,
                        .steps = 8},
                       &d);
      PrintRow("resnet", strategy, accumulation, d);
    }
  }
}
// Ranks whose batches and microbatches differ, or are empty.
TEST(ResnetParity, SynchronizedBatchNormIsTorchsSyncBatchNorm) {
  ExpectSameResnet({.ranks = 2, .synchronized = true});
  ExpectSameResnet({.ranks = 3, .samples = 13, .microbatch = 3, .synchronized = true});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_fsdp(); },
                    .ranks = 3,
                    .samples = 10,
                    .microbatch = 3,
                    .recompute = true,
                    .synchronized = true});
}
TEST(ResnetParity, SynchronizedBatchNormIsOneProcessWithTheWholeBatch) {
  ExpectSameResnet({.ranks = 2, .samples = 13, .synchronized = true, .peer_is_one = true});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_zero()->set_stage(3); },
                    .ranks = 4,
                    .samples = 7,
                    .recompute = true,
                    .synchronized = true,
                    .peer_is_one = true});
  ExpectSameResnet(
      {.depth = 18, .ranks = 2, .samples = 6, .steps = 3, .lr = 1e-4, .synchronized = true, .peer_is_one = true});
}
TEST(ResnetParity, MistakesOfSynchronizationAreSeen) {
  for (const char* mistake : {"own_statistics", "equal_counts", "own_sums", "own_count"}) {
    ExpectCaughtResnet({.ranks = 3, .samples = 13, .microbatch = 5, .synchronized = true, .mistake = mistake});
  }
}
// Autograd ends at the first parameter that needs a gradient; running statistics go on in front of it, and so does what
// SyncBatchNorm exchanges forward, also of a rank whose microbatch is empty.
TEST(ResnetParity, BehindAFrozenFront) {
  const std::vector<std::string> freeze = {"*", "!layer2.*", "!layer3.*", "!fc.*", "layer3.0.conv1.weight"};
  ExpectSameResnet({.freeze = freeze});
  ExpectSameResnet({.recompute = true, .freeze = freeze});
  ExpectSameResnet({.ranks = 2, .freeze = freeze});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_fsdp(); }, .ranks = 2, .freeze = freeze});
  ExpectSameResnet({.ranks = 3, .samples = 13, .microbatch = 3, .synchronized = true, .freeze = freeze});
  ExpectSameResnet({.strategy = [](Strategy& s) { s.mutable_zero()->set_stage(3); },
                    .ranks = 3,
                    .samples = 10,
                    .microbatch = 3,
                    .recompute = true,
                    .synchronized = true,
                    .freeze = freeze});
}
// Trained by our trainer with each stem, exported, and read by torchvision's model, or by the paper's.
TEST(ResnetParity, AnExportHasTheSameLossThere) {
  trainer::Bench bench;
  const std::string images = bench.Path("images.bin");
  {
    std::ofstream out(images, std::ios::binary);
    std::mt19937 random(3);
    for (int i = 0; i < 40 * 3073; ++i) out.put(static_cast<char>(i % 3073 == 0 ? i / 3073 % 10 : random() % 256));
  }
  uint64_t generation = 0;
  for (const auto& [depth, stem] : {std::pair(8u, RESNET_STEM_CIFAR), std::pair(18u, RESNET_STEM_IMAGENET),
                                    std::pair(34u, RESNET_STEM_IMAGENET), std::pair(50u, RESNET_STEM_IMAGENET)}) {
    JobSpec spec = bench.MakeJob();
    Train& train = *spec.mutable_train();
    Resnet& m = *train.mutable_model()->mutable_resnet();
    m.set_depth(depth), m.set_stem(stem), m.set_image(32);
    *train.mutable_model() = models::Resolve(train.model()).value();
    train.mutable_data()->clear_tokens();
    train.mutable_data()->set_images(images);
    for (const float value : {0.1f, 0.5f, 0.9f}) {
      train.mutable_data()->add_mean(value), train.mutable_data()->add_standard_deviation(value / 2 + 0.1f);
    }
    train.mutable_batch()->set_microbatch(8);
    train.mutable_checkpoint()->set_path(bench.Path(absl::StrCat("checkpoints-", depth)));
    train.set_steps(1);
    trainer::Process job = bench.Start(bench.Assign(spec, ++generation));
    ASSERT_EQ(job.Wait(), 0) << job.Log();
    const std::string out = bench.Path(absl::StrCat("export-", depth));
    const auto run = [&](const std::vector<std::string>& arguments) {
      trainer::Process process = trainer::StartTrainer(arguments, bench.Path("log"));
      EXPECT_EQ(process.Wait(), 0) << process.Log();
      return process.Output();
    };
    run({"export", "--checkpoint", train.checkpoint().path(), "--out", out});
    const json ours = json::parse(run({"eval", "--checkpoint", train.checkpoint().path(), "--data", images, "--json"}));
    const auto theirs = Peer::Get().AskResnet({{"export", out}, {"images", images}});
    ASSERT_TRUE(theirs.ok()) << theirs.status();
    EXPECT_NEAR(ours.value("loss", 0.0) / theirs->value("loss", 0.0), 1, 5e-6) << depth;
    EXPECT_NEAR(ours.value("top1", 0.0), theirs->value("top1", 1.0), 1e-6) << depth;
  }
}

TEST(ResnetParity, MistakesAreSeen) {
  for (const char* mistake : {"bn_eps", "bn_momentum", "no_smoothing", "no_buffers", "nesterov"}) {
    ExpectCaughtResnet({.smoothing = 0.1, .mistake = mistake});
  }
}

}  // namespace
}  // namespace muster::parity
