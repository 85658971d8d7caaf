// Adapters trained here against the same training by PEFT on transformers, through the files that both read.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

constexpr uint32_t kPeftSteps = 12, kPeftSequences = 4;
constexpr double kPeftRate = 3e-3;

class Peft : public ::testing::Test {
 protected:
  std::string RunPeft(const std::vector<std::string>& arguments) {
    Process trainer = StartTrainer(arguments, bench_.Path("tool"));
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    return trainer.Output();
  }
  // Trains into `folder` and returns the losses of the steps.
  std::vector<double> TrainInto(const std::string& folder, JobSpec spec) {
    spec.mutable_train()->mutable_checkpoint()->set_path(folder);
    spec.mutable_train()->mutable_checkpoint()->set_every_steps(0);
    const Assignment assignment = bench_.Assign(spec, ++generation_);
    Process trainer = bench_.Start(assignment);
    EXPECT_EQ(trainer.Wait(), 0) << trainer.Log();
    std::vector<double> losses;
    for (const Record& record : bench_.Records(assignment)) {
      if (record.has_metrics()) losses.push_back(record.metrics().loss());
    }
    return losses;
  }
  std::string ExportOf(const std::string& folder, const std::string& name, bool adapter) {
    const std::string out = bench_.Path(name);
    std::vector<std::string> arguments = {"export", "--checkpoint", folder, "--out", out};
    if (adapter) arguments.push_back("--adapter");
    RunPeft(arguments);
    return out;
  }
  double EvalOf(const std::string& folder) {
    const std::string text =
        RunPeft({"eval", "--checkpoint", folder, "--data", bench_.Path("val.bin"), "--threads", "1", "--json"});
    return nlohmann::json::parse(text, nullptr, false).value("loss", std::nan(""));
  }

  Bench bench_;
  uint64_t generation_ = 0;
};

TEST_F(Peft, TrainsTheSameAdapters) {
  struct Case {
    std::string name;
    Model model;
    std::vector<std::string> targets;
    std::vector<double> losses = {};
    std::string folder = {};
  };
  std::vector<Case> cases = {{"gpt2", bench_.MakeJob().train().model(), {}}};
  Model llama;
  Llama& m = *llama.mutable_llama();
  m.set_layers(2), m.set_heads(4), m.set_key_value_heads(2), m.set_width(32), m.set_inner(80), m.set_qkv_bias(true);
  m.set_vocabulary(256), m.set_context(16), m.set_tied_head(true);
  cases.push_back({"llama", llama, {"q_proj", "mlp.down_proj"}});
  const char* python = getenv("MUSTER_PEER_PYTHON");
  ASSERT_NE(python, nullptr) << "run ./test.sh, which sets MUSTER_PEER_PYTHON";
  std::vector<std::string> arguments = {python,
                                        "tests/parity/peft_peer.py",
                                        bench_.Path("train.bin"),
                                        absl::StrCat(kPeftSteps),
                                        absl::StrCat(kPeftSequences),
                                        absl::StrCat(kPeftRate)};
  for (Case& c : cases) {
    JobSpec spec = bench_.MakeJob();
    Train& train = *spec.mutable_train();
    *train.mutable_model() = *models::Resolve(c.model);
    train.set_steps(30);
    train.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL);
    train.mutable_batch()->set_sequences(kPeftSequences);
    train.mutable_batch()->set_microbatch(2);
    train.mutable_optimizer()->set_weight_decay(0);
    train.mutable_optimizer()->set_clip_norm(0);
    train.mutable_optimizer()->set_lr(kPeftRate);
    train.mutable_optimizer()->mutable_adamw()->set_beta2(0.999);
    train.mutable_optimizer()->mutable_lr_schedule()->set_warmup_steps(0);
    train.mutable_optimizer()->mutable_lr_schedule()->mutable_constant();
    const std::string at = bench_.Path(c.name);
    TrainInto(at + "-base", spec);
    const std::string base = ExportOf(at + "-base", c.name + "-hf", /*adapter=*/false);
    train.mutable_model()->set_from(base);
    train.mutable_lora()->set_rank(4);
    train.mutable_lora()->set_alpha(12);
    for (const std::string& target : c.targets) train.mutable_lora()->add_targets(target);
    // One step that moves nothing, to have the adapters as they begin.
    JobSpec still = spec;
    still.mutable_train()->set_steps(1);
    still.mutable_train()->mutable_optimizer()->set_lr(1e-30);
    TrainInto(at + "-still", still);
    train.set_steps(kPeftSteps);
    c.folder = at + "-trained";
    c.losses = TrainInto(c.folder, spec);
    ASSERT_EQ(c.losses.size(), kPeftSteps);
    arguments.insert(arguments.end(),
                     {base, ExportOf(at + "-still", c.name + "-before", true),
                      ExportOf(c.folder, c.name + "-after", true), ExportOf(c.folder, c.name + "-merged", false)});
  }
  Process peer(arguments, bench_.Path("peer"));
  ASSERT_EQ(peer.Wait(), 0) << peer.Log();
  const nlohmann::json theirs = nlohmann::json::parse(peer.Output(), nullptr, false);
  ASSERT_EQ(theirs.size(), cases.size()) << peer.Output();
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    SCOPED_TRACE(c.name);
    const auto losses = theirs[i].at("losses").get<std::vector<double>>();
    for (size_t s = 0; s < losses.size(); ++s) EXPECT_NEAR(c.losses[s] / losses[s], 1, 5e-6) << "step " << s;
    EXPECT_GT(theirs[i].at("moved").get<double>(), 0.02) << "training moved less than 20 times what may differ";
    EXPECT_LT(theirs[i].at("adapter").get<double>(), 1e-3) << "AdamW amplifies rounding where gradients are near zero";
    EXPECT_FALSE(theirs[i].at("base_changed").get<bool>());
    EXPECT_NEAR(theirs[i].at("merged").get<double>() / theirs[i].at("wrapped").get<double>(), 1, 1e-6);
    EXPECT_NEAR(EvalOf(c.folder) / EvalOf(bench_.Path(c.name + "-merged")), 1, 1e-6);
  }
}

// What adapters cannot hold is not dropped silently.
TEST_F(Peft, AnExportOfAdaptersHoldsAllThatWasTrained) {
  JobSpec spec = bench_.MakeJob();
  spec.mutable_train()->set_steps(1);
  TrainInto(bench_.Path("plain"), spec);
  spec.mutable_train()->mutable_lora()->set_rank(2);
  spec.mutable_train()->mutable_lora()->set_alpha(2);
  spec.mutable_train()->add_freeze("!ln_f.*");
  TrainInto(bench_.Path("more"), spec);
  for (const auto& [folder, says] :
       {std::pair("plain", "has no adapters"), std::pair("more", "its job also trained ln_f.weight")}) {
    Process refused = StartTrainer(
        {"export", "--checkpoint", bench_.Path(folder), "--out", bench_.Path("out"), "--adapter"}, bench_.Path("tool"));
    EXPECT_EQ(refused.Wait(), 2);
    EXPECT_NE(refused.Log().find(says), std::string::npos) << refused.Log();
  }
  ExportOf(bench_.Path("more"), "merged", /*adapter=*/false);
  EXPECT_NEAR(EvalOf(bench_.Path("merged")) / EvalOf(bench_.Path("more")), 1, 1e-6);
}

}  // namespace
}  // namespace muster::trainer
