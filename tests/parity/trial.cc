#include "tests/parity/trial.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "data/sampler.h"
#include "data/token_file.h"
#include "models/family.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/defaults.h"
#include "testing/optimizers.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/engine/configure.h"
#include "worker/engine/engine.h"
#include "worker/tasks/language_model.h"

namespace muster::parity {
namespace {

using nlohmann::json;

constexpr double kAdamWRate = 3e-4;  // muon's

Train MakeTrain(const Trial& trial) {
  Train train;
  if (trial.model.has_value()) {
    *train.mutable_model() = models::Resolve(*trial.model).value();
  } else {
    Gpt2& g = *train.mutable_model()->mutable_gpt2();
    g.set_layers(2), g.set_heads(2), g.set_width(48), g.set_vocabulary(256), g.set_context(32);
  }
  train.mutable_batch()->set_sequences(trial.sequences);
  train.mutable_batch()->set_microbatch(trial.microbatch);
  Optimizer& o = *train.mutable_optimizer();
  o = OptimizerOf(trial.optimizer, trial.lr);
  o.set_weight_decay(0.1);
  if (o.has_muon()) o.mutable_muon()->set_adamw_weight_decay(0.1), o.mutable_muon()->set_adamw_lr(kAdamWRate);
  o.set_clip_norm(1.0);
  train.set_seed(11);
  if (trial.ranks == 1) {
    train.mutable_strategy()->mutable_single();
  } else {
    trial.strategy(*train.mutable_strategy());
    strategies::FillDefaults(o, *train.mutable_strategy());
  }
  return train;
}

engine::Configured Configure(const Trial& trial, uint32_t rank) {
  const Train train = MakeTrain(trial);
  return engine::Configure(train, *models::MakeInventory(train.model()), trial.ranks, rank).value();
}

}  // namespace

Lab::Lab() {
  std::ifstream text("/usr/share/common-licenses/GPL-3", std::ios::binary);
  EXPECT_TRUE(text) << "no /usr/share/common-licenses/GPL-3 (Debian's base-files)";
  std::ofstream tokens(folder_.path() + "/tokens.bin", std::ios::binary);
  for (char c; text.get(c);) tokens.put(c).put(0);
}

Curve Lab::Ours(const Trial& trial) const {
  const uint64_t context = models::TargetsPerSample(*models::MakeInventory(MakeTrain(trial).model()));
  const data::TokenFile file = data::TokenFile::Open(folder_.path() + "/tokens.bin", context).value();
  const data::Order order({.tokens = file.tokens(), .context = context, .order = DATA_ORDER_SEQUENTIAL, .seed = 1});
  collectives::MemoryKeyValue rendezvous;
  std::vector<Curve> curves(trial.ranks);
  const auto run = [&](uint32_t rank) {
    engine::Configured configured = Configure(trial, rank);
    engine::Config& config = configured.config;
    const RankGroups groups(configured, rendezvous);
    config.groups = groups.by_number();
    const auto engine = engine::Engine::Create(config).value();
    const strategies::Share share = strategies::ShareOf(trial.sequences, trial.ranks, rank);
    std::vector<uint32_t> tokens;
    for (uint64_t step = 0; step < static_cast<uint64_t>(trial.steps); ++step) {
      EXPECT_TRUE(data::ReadSamples(file, order, step * trial.sequences + share.first, share.sequences, tokens).ok());
      const auto result = engine->Step(tasks::TokenBatch(share.sequences, tokens, trial.sequences), trial.lr);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      curves[rank].losses.push_back(result->loss);
      curves[rank].norms.push_back(result->gradient_norm);
    }
    EXPECT_TRUE(config.groups[kWorldGroup] == nullptr || config.groups[kWorldGroup]->Barrier().ok());
  };
  RunRanks(trial.ranks, run);
  for (const Curve& curve : curves) EXPECT_EQ(curve.losses, curves[0].losses) << "ranks report different losses";
  return curves[0];
}

Curve Lab::Theirs(const Trial& trial) const {
  const Model model = models::Resolve(MakeTrain(trial).model()).value();
  const models::ModelFamily& family = *models::FamilyOf(model);
  Trial alone = trial;
  alone.ranks = 1;
  const auto engine = engine::Engine::Create(Configure(alone, 0).config).value();
  const std::string path = folder_.path() + "/weights.bin";
  json config = {{"model", family.ToConfig(model)},
                 {"layers", model.gpt2().layers()},
                 {"heads", model.gpt2().heads()},
                 {"width", model.gpt2().width()},
                 {"context", models::TargetsPerSample(*models::MakeInventory(model))},
                 {"sequences", trial.sequences},
                 {"microbatch", trial.microbatch},
                 {"ranks", trial.ranks},
                 {"strategy", trial.fsdp2 ? "fsdp2" : "ddp"},
                 {"steps", trial.steps},
                 {"optimizer", trial.optimizer},
                 {"lr", trial.lr},
                 {"adamw_lr", kAdamWRate},
                 {"weight_decay", 0.1},
                 {"clip_norm", 1.0},
                 {"beta1", 0.9},
                 {"beta2", trial.optimizer == "lion" ? 0.99 : 0.999},
                 {"eps", 1e-8},
                 {"momentum", 0.9},
                 {"nesterov", false},
                 {"mistake", trial.mistake},
                 {"tokens", folder_.path() + "/tokens.bin"},
                 {"weights", path},
                 {"tensors", json::array()}};
  std::ofstream weights(path, std::ios::binary);
  for (const engine::StateView& view : engine->State()) {
    if (view.kind != "parameter") continue;
    config["tensors"].push_back({view.tensor, view.shape});
    weights.write(reinterpret_cast<const char*>(view.values.data()),
                  static_cast<std::streamsize>(4 * view.values.size()));
  }
  weights.close();
  const auto curve = model.has_gpt2() ? Peer::Get().TrainGpt2(config) : Peer::Get().TrainLlama(config);
  EXPECT_TRUE(curve.ok()) << curve.status();
  return curve.value_or(Curve{});
}

void ExpectSame(const Trial& trial) {
  const Difference d = Lab().Compared(trial);
  testing::Test::RecordProperty("loss_difference", absl::StrCat(d.loss));
  testing::Test::RecordProperty("norm_difference", absl::StrCat(d.norm));
  EXPECT_LE(d.loss, kLossLimit);
  EXPECT_LE(d.norm, kNormLimit);
}

void ExpectCaught(const Trial& trial) {
  const Difference d = Lab().Compared(trial);
  EXPECT_TRUE(std::isfinite(d.loss)) << "nothing was compared";
  EXPECT_FALSE(Same(d)) << trial.mistake << " would not be seen";
}

}  // namespace muster::parity
