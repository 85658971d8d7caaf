// A single rank against plain PyTorch: same initial weights, same real text in order, the same numbers. The limits are
// those that catch real mistakes: fp32 is 3e-7 (losses) and 8e-6 (gradient norms) from float64, and each of the
// mistakes below exceeds them.
//
// The peer's interpreter is $MUSTER_PEER_PYTHON (./test.sh sets it; tools/fetch_torch.sh peer makes it).
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "tests/parity/peer.h"
#include "worker/data/sampler.h"
#include "worker/data/token_file.h"
#include "worker/engine/engine.h"

namespace muster {
namespace {

using nlohmann::json;
using parity::Curve;

constexpr int kSteps = 50;

struct Trial {
  std::string optimizer = "adamw";
  uint32_t sequences = 8;
  uint32_t microbatch = 8;
  double lr = 3e-4;
};

Train MakeTrain(const Trial& setup) {
  Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(2), g.set_heads(2), g.set_width(48), g.set_vocabulary(256), g.set_context(32);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(setup.sequences);
  train.mutable_batch()->set_microbatch(setup.microbatch);
  Optimizer& o = *train.mutable_optimizer();
  if (setup.optimizer == "sgd") {
    o.mutable_sgd()->set_momentum(0.9);
  } else {
    o.mutable_adamw()->set_beta1(0.9);
    o.mutable_adamw()->set_beta2(0.999);
    o.mutable_adamw()->set_eps(1e-8);
  }
  o.set_lr(setup.lr);
  o.set_weight_decay(0.1);
  o.set_clip_norm(1.0);
  train.set_seed(11);
  return train;
}

class Parity : public testing::Test {
 protected:
  void SetUp() override {
    std::array<char, 32> name{"/tmp/muster-parity-XXXXXX"};
    folder_ = mkdtemp(name.data());
    std::ifstream text("/usr/share/common-licenses/GPL-3", std::ios::binary);
    ASSERT_TRUE(text) << "no /usr/share/common-licenses/GPL-3 (Debian's base-files)";
    std::ofstream tokens(folder_ + "/tokens.bin", std::ios::binary);
    for (char c; text.get(c);) tokens.put(c).put(0);
  }

  std::unique_ptr<engine::Engine> MakeEngine(const Train& train) {
    engine::Config config;
    config.train = train;
    config.inventory = *models::MakeInventory(train.model());
    const strategies::Layout layout = *strategies::MakeLayout(train, config.inventory, 1);
    config.table = layout.table;
    config.role = layout.roles[0];
    config.schedule = strategies::Compile(train, config.inventory, layout, 0)->schedule;
    return engine::Engine::Create(config).value();
  }

  Curve Ours(const Trial& setup) {
    const Train train = MakeTrain(setup);
    auto engine = MakeEngine(train);
    const uint64_t context = train.model().gpt2().context();
    const data::TokenFile file = data::TokenFile::Open(folder_ + "/tokens.bin", context).value();
    const data::Order order({.tokens = file.tokens(), .context = context, .order = DATA_ORDER_SEQUENTIAL, .seed = 1});
    Curve run;
    std::vector<uint32_t> tokens;
    for (uint64_t step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(data::ReadSamples(file, order, step * setup.sequences, setup.sequences, tokens).ok());
      const auto result = engine->Step({setup.sequences, tokens, setup.sequences * context}, setup.lr);
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) break;
      run.losses.push_back(result->loss);
      run.norms.push_back(result->gradient_norm);
    }
    return run;
  }

  Curve Theirs(const Trial& setup, const std::string& mistake) {
    const Train train = MakeTrain(setup);
    const Gpt2& g = train.model().gpt2();
    auto engine = MakeEngine(train);
    json config = {{"layers", g.layers()},
                   {"heads", g.heads()},
                   {"width", g.width()},
                   {"context", g.context()},
                   {"sequences", setup.sequences},
                   {"steps", kSteps},
                   {"accumulation", (setup.sequences + setup.microbatch - 1) / setup.microbatch},
                   {"optimizer", setup.optimizer},
                   {"lr", setup.lr},
                   {"weight_decay", 0.1},
                   {"clip_norm", 1.0},
                   {"beta1", 0.9},
                   {"beta2", 0.999},
                   {"eps", 1e-8},
                   {"momentum", 0.9},
                   {"nesterov", false},
                   {"mistake", mistake},
                   {"tokens", folder_ + "/tokens.bin"},
                   {"weights", folder_ + "/weights.bin"},
                   {"tensors", json::array()}};
    std::ofstream weights(folder_ + "/weights.bin", std::ios::binary);
    for (const engine::StateView& view : engine->State()) {
      if (view.kind != "parameter") continue;
      config["tensors"].push_back({view.tensor, view.shape});
      weights.write(reinterpret_cast<const char*>(view.values.data()),
                    static_cast<std::streamsize>(4 * view.values.size()));
    }
    weights.close();
    const auto curve = parity::Peer::Get().Train(config);
    EXPECT_TRUE(curve.ok()) << curve.status();
    return curve.value_or(Curve{});
  }

  parity::Difference Compared(const Trial& setup, const std::string& mistake) {
    const parity::Difference d = parity::Compare(Ours(setup), Theirs(setup, mistake));
    EXPECT_TRUE(std::isfinite(d.loss)) << "nothing was compared";
    return d;
  }

  void ExpectSame(const Trial& setup) {
    const parity::Difference d = Compared(setup, "");
    RecordProperty("loss_difference", absl::StrCat(d.loss));
    RecordProperty("norm_difference", absl::StrCat(d.norm));
    EXPECT_LE(d.loss, parity::kLossLimit);
    EXPECT_LE(d.norm, parity::kNormLimit);
  }

  void ExpectCaught(const std::string& mistake, const Trial& setup) {
    EXPECT_FALSE(parity::Same(Compared(setup, mistake))) << mistake << " would not be seen";
  }

  std::string folder_;
};

TEST_F(Parity, AdamW) { ExpectSame({}); }
TEST_F(Parity, AdamWAccumulatingFour) { ExpectSame({.microbatch = 2}); }
TEST_F(Parity, AdamWSizesThatDoNotDivide) { ExpectSame({.sequences = 7, .microbatch = 3}); }
TEST_F(Parity, Sgd) { ExpectSame({.optimizer = "sgd", .lr = 0.1}); }
TEST_F(Parity, SgdAccumulatingFour) { ExpectSame({.optimizer = "sgd", .microbatch = 2, .lr = 0.1}); }

// A test that cannot turn red shows nothing: each of these mistakes must exceed the limits.
TEST_F(Parity, CatchesWrongBetas) { ExpectCaught("betas", {}); }
TEST_F(Parity, CatchesWrongEps) { ExpectCaught("eps", {}); }
TEST_F(Parity, CatchesForgottenDecayExclusion) { ExpectCaught("decay_all", {}); }
TEST_F(Parity, CatchesTheOtherGelu) { ExpectCaught("gelu", {.lr = 1e-3}); }
TEST_F(Parity, CatchesMissingClipping) { ExpectCaught("no_clip", {.optimizer = "sgd", .lr = 0.1}); }
TEST_F(Parity, CatchesMeansOfUnevenMicrobatches) { ExpectCaught("mean_of_means", {.sequences = 7, .microbatch = 3}); }

}  // namespace
}  // namespace muster
