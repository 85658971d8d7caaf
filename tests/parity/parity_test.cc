// Muster's trainer against plain PyTorch: the same initial weights, tokens, order and optimizer give the same losses
// and gradient norms, and a PyTorch with one mistake in it does not. The limits are those of reference measurements:
// another split of sums moves losses by 2e-7 and norms by 1e-5 in 50 steps, real mistakes move them by far more.
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/trainer/fake_worker.h"

namespace muster::trainer {
namespace {

using nlohmann::json;

constexpr double kLossLimit = 5e-6;  // relative
constexpr double kNormLimit = 3e-5;  // relative
constexpr uint64_t kSteps = 50;

struct Case {
  const char* name;
  bool adamw;
  uint32_t microbatch;  // of 8 sequences
  std::vector<std::string> mistakes;
};

JobSpec MakeJob(const Bench& bench, const Case& c) {
  JobSpec spec = bench.MakeJob();
  Train& train = *spec.mutable_train();
  Gpt2& model = *train.mutable_model()->mutable_gpt2();
  model.set_layers(3), model.set_heads(4), model.set_width(64), model.set_vocabulary(256), model.set_context(32);
  train.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL);
  train.mutable_batch()->set_microbatch(c.microbatch);
  Optimizer& optimizer = *train.mutable_optimizer();
  optimizer.clear_lr_schedule();
  optimizer.mutable_lr_schedule()->mutable_constant();
  if (c.adamw) {
    optimizer.mutable_adamw()->set_beta2(0.999);
    optimizer.set_lr(1e-3);
  } else {
    optimizer.mutable_sgd()->set_momentum(0.9);
    optimizer.set_lr(0.05);
    optimizer.set_weight_decay(0.01);
    optimizer.set_clip_norm(0);
  }
  return spec;
}

// Words in an order of their own: as far from random and from a repeated line as real text is.
std::string WriteText(const Bench& bench) {
  const char* words[] = {"and ",    "the ", "of ",    "light ", "was ", "upon ",
                         "waters ", "day ", "night ", "God ",   "said "};
  std::vector<uint16_t> tokens;
  uint64_t state = 1;
  while (tokens.size() < 9000) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    for (const char* c = words[(state >> 33) % std::size(words)]; *c != 0; ++c) {
      tokens.push_back(static_cast<unsigned char>(*c));
    }
  }
  return bench.WriteTokens("text.bin", tokens);
}

json DescribeJob(const JobSpec& spec) {
  const Train& train = spec.train();
  const Gpt2& model = train.model().gpt2();
  const Optimizer& o = train.optimizer();
  json optimizer = {{"kind", o.has_sgd() ? "sgd" : "adamw"},
                    {"lr", o.lr()},
                    {"weight_decay", o.weight_decay()},
                    {"clip_norm", o.clip_norm()},
                    {"momentum", o.sgd().momentum()},
                    {"nesterov", o.sgd().nesterov()},
                    {"beta1", o.adamw().beta1()},
                    {"beta2", o.adamw().beta2()},
                    {"eps", o.adamw().eps()}};
  return {{"layers", model.layers()},
          {"heads", model.heads()},
          {"context", model.context()},
          {"sequences", train.batch().sequences()},
          {"microbatch", train.batch().microbatch()},
          {"steps", kSteps},
          {"tokens", train.data().tokens()},
          {"optimizer", optimizer}};
}

class Parity : public ::testing::TestWithParam<Case> {};

TEST_P(Parity, LossesAndNormsArePyTorchs) {
  const char* python = getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "set MUSTER_PEER_PYTHON to a Python that has torch: ./test.sh does, by hand it is "
                                "bazel test --test_env=MUSTER_PEER_PYTHON=/path/to/venv/bin/python //tests/parity/...";
  Bench bench;
  JobSpec spec = MakeJob(bench, GetParam());
  spec.mutable_train()->mutable_data()->set_tokens(WriteText(bench));

  // A job of no steps leaves a checkpoint of its initial weights; both sides begin with that file.
  spec.mutable_train()->set_steps(0);
  Assignment assignment = bench.Assign(spec, 1);
  Process initial = bench.Start(assignment);
  ASSERT_EQ(initial.Wait(), 0) << initial.Log();
  spec.mutable_train()->set_steps(kSteps);
  spec.mutable_train()->mutable_checkpoint()->set_every_steps(0);
  assignment = bench.Assign(spec, 2);
  bench.Publish(assignment);
  Process trainer = bench.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();

  json job = DescribeJob(spec);
  job["weights"] = bench.Path("checkpoints/step-0000000000-g1/shard-00000.safetensors");
  for (const Record& record : bench.Records(assignment)) {
    if (!record.has_metrics()) continue;
    job["losses"].push_back(record.metrics().loss());
    job["norms"].push_back(record.metrics().gradient_norm());
  }
  ASSERT_EQ(job["losses"].size(), kSteps);
  job["variants"] = GetParam().mistakes;
  job["variants"].insert(job["variants"].begin(), "plain");
  std::ofstream(bench.Path("job.json")) << job;
  Process peer({python, "tests/parity/gpt2_torch.py", bench.Path("job.json")}, bench.Path("peer"));
  ASSERT_EQ(peer.Wait(), 0) << python << " failed; does it have torch?\n" << peer.Log();

  const json result = json::parse(peer.Output());
  std::printf("torch %s\n", result["torch"].get<std::string>().c_str());
  for (const auto& [variant, differences] : result["variants"].items()) {
    const double loss = differences["loss"], norm = differences["norm"], last = differences["last_loss"];
    std::printf("%-28s loss %.2e  norm %.2e  last loss %.4f\n", variant.c_str(), loss, norm, last);
    if (variant == "plain") {
      EXPECT_LE(loss, kLossLimit);
      EXPECT_LE(norm, kNormLimit);
      EXPECT_LT(last, 0.8 * job["losses"][0].get<double>()) << "nothing was learnt, so nothing was compared";
    } else {
      EXPECT_TRUE(loss > kLossLimit || norm > kNormLimit) << "the comparison does not see " << variant;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    PyTorch, Parity,
    ::testing::Values(Case{"AdamW", true, 8, {"wrong_betas", "decay_everything", "erf_gelu", "no_clipping"}},
                      Case{"AdamWAccumulated", true, 2, {"wrong_eps", "erf_gelu", "no_division_by_microbatches"}},
                      Case{"Sgd", false, 8, {"wrong_momentum", "decay_everything", "erf_gelu"}},
                      Case{"SgdAccumulated", false, 2, {"no_division_by_microbatches"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace muster::trainer
