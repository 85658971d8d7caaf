// The trainer process against plain PyTorch, end to end: PyTorch reads the checkpoint of step 0 from which the trainer
// starts, and must get the losses and gradient norms that the trainer's outbox reports. parity_test does the same with
// the engine alone and more of its options.
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "gtest/gtest.h"
#include "tests/parity/peer.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

using parity::Curve;

constexpr uint64_t kSteps = 50;

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
    // A job of no steps leaves a checkpoint of its initial weights; both sides start from that file.
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
    const Train& train = spec.train();
    const Gpt2& model = train.model().gpt2();
    const Optimizer& o = train.optimizer();
    const json config = {{"layers", model.layers()},
                         {"heads", model.heads()},
                         {"width", model.width()},
                         {"context", model.context()},
                         {"sequences", train.batch().sequences()},
                         {"microbatch", train.batch().microbatch()},
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
    const auto curve = parity::Peer::Get().TrainGpt2(config);
    EXPECT_TRUE(curve.ok()) << curve.status();
    return curve.value_or(Curve{});
  }

  Bench bench_;
};

TEST_F(TrainerParity, AdamWAccumulatingFour) {
  const JobSpec spec = MakeJob(/*microbatch=*/2);
  const Curve ours = Ours(spec);
  const auto [loss, norm] = parity::Compare(ours, Theirs(spec, ""));
  EXPECT_LE(loss, parity::kLossLimit);
  EXPECT_LE(norm, parity::kNormLimit);
  EXPECT_LT(ours.losses.back(), 0.7 * ours.losses.front()) << "the model learned nothing, so the comparison is void";
  for (const char* mistake : {"betas", "decay_all", "gelu"}) {
    const parity::Difference wrong = parity::Compare(ours, Theirs(spec, mistake));
    EXPECT_TRUE(std::isfinite(wrong.loss)) << mistake << ": nothing was compared";
    EXPECT_FALSE(parity::Same(wrong)) << mistake << " would not be seen";
  }
}

TEST_F(TrainerParity, Sgd) {
  JobSpec spec = MakeJob(/*microbatch=*/8);
  spec.mutable_train()->mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
  spec.mutable_train()->mutable_optimizer()->set_lr(0.05);
  const Curve ours = Ours(spec);
  const auto [loss, norm] = parity::Compare(ours, Theirs(spec, ""));
  EXPECT_LE(loss, parity::kLossLimit);
  EXPECT_LE(norm, parity::kNormLimit);
}

}  // namespace
}  // namespace muster::trainer
