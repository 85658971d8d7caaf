// The trainer process against plain PyTorch, end to end: PyTorch reads the checkpoint of step 0 from which the trainer
// starts, and must have the losses and gradient norms that the trainer's outbox reports. parity_test does the same with
// the engine alone, and more of its options.
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "gtest/gtest.h"
#include "worker/trainer/fake_worker.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

constexpr double kLossLimit = 5e-6, kNormLimit = 3e-5;  // relative, as in parity_test
constexpr uint64_t kSteps = 50;

struct Curve {
  std::vector<double> losses, norms;
};

// The largest relative differences: losses, norms.
std::pair<double, double> Compare(const Curve& ours, const Curve& theirs) {
  double loss = 0, norm = 0;
  EXPECT_EQ(ours.losses.size(), kSteps);
  EXPECT_EQ(theirs.losses.size(), kSteps);
  for (size_t i = 0; i < std::min(ours.losses.size(), theirs.losses.size()); ++i) {
    loss = std::max(loss, std::abs(ours.losses[i] / theirs.losses[i] - 1));
    norm = std::max(norm, std::abs(ours.norms[i] / theirs.norms[i] - 1));
  }
  std::printf("largest relative difference over %zu steps: losses %.2g, norms %.2g\n", ours.losses.size(), loss, norm);
  return {loss, norm};
}

class TrainerParity : public ::testing::Test {
 protected:
  JobSpec MakeJob(uint32_t microbatch) {
    JobSpec spec = bench_.MakeJob();
    Train& train = *spec.mutable_train();
    Gpt2& model = *train.mutable_model()->mutable_gpt2();
    model.set_layers(3), model.set_heads(4), model.set_width(64), model.set_vocabulary(256), model.set_context(32);
    train.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL);
    train.mutable_data()->set_tokens(WriteText());
    train.mutable_batch()->set_microbatch(microbatch);
    train.mutable_optimizer()->mutable_lr_schedule()->Clear();
    train.mutable_optimizer()->mutable_lr_schedule()->mutable_constant();
    train.mutable_optimizer()->mutable_adamw()->set_beta2(0.999);
    train.mutable_optimizer()->set_lr(1e-3);
    return spec;
  }

  std::string WriteText() const {
    std::ifstream text("/usr/share/common-licenses/GPL-3", std::ios::binary);
    EXPECT_TRUE(text) << "no /usr/share/common-licenses/GPL-3 (Debian's base-files)";
    std::vector<uint16_t> tokens;
    for (char c; text.get(c);) tokens.push_back(static_cast<unsigned char>(c));
    return bench_.WriteTokens("text.bin", tokens);
  }

  Curve Ours(JobSpec spec) {
    // A job of no steps leaves a checkpoint of its initial weights; both sides begin with that file.
    spec.mutable_train()->set_steps(0);
    Assignment assignment = bench_.Assign(spec, 1);
    Process initial = bench_.Start(assignment);
    EXPECT_EQ(initial.Wait(), 0) << initial.Log();
    spec.mutable_train()->set_steps(kSteps);
    spec.mutable_train()->mutable_checkpoint()->set_every_steps(0);
    assignment = bench_.Assign(spec, 2);
    bench_.Publish(assignment);
    Process trainer = bench_.Start(assignment);
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    Curve curve;
    for (const Record& record : bench_.Records(assignment)) {
      if (!record.has_metrics()) continue;
      curve.losses.push_back(record.metrics().loss());
      curve.norms.push_back(record.metrics().gradient_norm());
    }
    return curve;
  }

  Curve Theirs(const JobSpec& spec, const std::string& mistake) {
    const char* python = getenv("MUSTER_PEER_PYTHON");
    if (python == nullptr) {
      ADD_FAILURE() << "MUSTER_PEER_PYTHON is not set: run ./test.sh, or tools/fetch_torch.sh peer and pass "
                       "--test_env=MUSTER_PEER_PYTHON=~/.cache/muster/peer/bin/python";
      return {};
    }
    const Train& train = spec.train();
    const Gpt2& model = train.model().gpt2();
    const Optimizer& o = train.optimizer();
    const json config = {{"layers", model.layers()},
                         {"heads", model.heads()},
                         {"width", model.width()},
                         {"context", model.context()},
                         {"sequences", train.batch().sequences()},
                         {"accumulation", train.batch().sequences() / train.batch().microbatch()},
                         {"steps", kSteps},
                         {"optimizer", o.has_sgd() ? "sgd" : "adamw"},
                         {"lr", o.lr()},
                         {"weight_decay", o.weight_decay()},
                         {"clip_norm", o.clip_norm()},
                         {"beta1", o.adamw().beta1()},
                         {"beta2", o.adamw().beta2()},
                         {"eps", o.adamw().eps()},
                         {"momentum", o.sgd().momentum()},
                         {"nesterov", o.sgd().nesterov()},
                         {"mistake", mistake},
                         {"tokens", train.data().tokens()},
                         {"weights", bench_.Path("checkpoints/step-0000000000-g1/shard-00000.safetensors")}};
    std::ofstream(bench_.Path("peer.json")) << config;
    Process peer({python, "tests/parity/gpt2_peer.py", bench_.Path("peer.json")}, bench_.Path("peer"));
    EXPECT_EQ(peer.Wait(), 0) << python << " failed; does it have torch?\n" << peer.Log();
    const json result = json::parse(peer.Output(), nullptr, false);
    if (result.is_discarded()) {
      ADD_FAILURE() << "the peer printed no JSON: " << peer.Output();
      return {};
    }
    return {result["losses"], result["norms"]};
  }

  Bench bench_;
};

TEST_F(TrainerParity, AdamWAccumulatingFour) {
  const JobSpec spec = MakeJob(/*microbatch=*/2);
  const Curve ours = Ours(spec);
  const auto [loss, norm] = Compare(ours, Theirs(spec, ""));
  EXPECT_LE(loss, kLossLimit);
  EXPECT_LE(norm, kNormLimit);
  EXPECT_LT(ours.losses.back(), 0.7 * ours.losses.front()) << "nothing was learnt, so nothing was compared";
  for (const char* mistake : {"betas", "decay_all", "gelu"}) {
    const auto [wrong_loss, wrong_norm] = Compare(ours, Theirs(spec, mistake));
    EXPECT_TRUE(wrong_loss > kLossLimit || wrong_norm > kNormLimit) << mistake << " would not be seen";
  }
}

TEST_F(TrainerParity, Sgd) {
  JobSpec spec = MakeJob(/*microbatch=*/8);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  spec.mutable_train()->mutable_optimizer()->set_lr(0.05);
  const Curve ours = Ours(spec);
  const auto [loss, norm] = Compare(ours, Theirs(spec, ""));
  EXPECT_LE(loss, kLossLimit);
  EXPECT_LE(norm, kNormLimit);
}

}  // namespace
}  // namespace muster::trainer
