#include "checkpoint/check_start.h"

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_fixture_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "strategies/partition/planners.h"

namespace muster::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CheckStartTest : public CheckpointTest {
 protected:
  CheckStartTest() {
    Gpt2& gpt2 = *job_.mutable_model()->mutable_gpt2();
    gpt2.set_layers(1), gpt2.set_heads(1), gpt2.set_width(8), gpt2.set_vocabulary(16), gpt2.set_context(4);
    *job_.mutable_model() = models::Resolve(job_.model()).value();
    job_.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    job_.mutable_data()->set_order(DATA_ORDER_SHUFFLED);
    job_.set_seed(1), job_.set_steps(50);
  }
  void WriteRun(uint64_t step) {
    Manifest manifest = MakeManifest(step);
    *manifest.mutable_spec()->mutable_train() = job_;
    *manifest.mutable_inventory() = models::MakeInventory(job_).value();
    *manifest.mutable_table() = partition::Replicated(manifest.inventory());
    manifest.mutable_tokenizer()->set_path("/gpt2");
    ASSERT_TRUE(Write(path_, manifest, Parts()).ok());
  }

  Train job_;  // resolved, as far as it is compared
};

TEST_F(CheckStartTest, AJobThatDiffersCannotContinueARun) {
  WriteRun(40);
  const auto same = CheckResumeFrom(path_, job_);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->step(), 40u);
  EXPECT_EQ(TokenizerOf(*same)->path(), "/gpt2");
  EXPECT_TRUE(CheckResumeFrom(Directory(40), job_).ok());
  const struct {
    const char* says;
    std::function<void(Train&)> change;
  } rows[] = {
      {"is of another model: vocab_size 16, but model.vocabulary is 32",
       [](Train& t) { t.mutable_model()->mutable_gpt2()->set_vocabulary(32); }},
      {"has other adapters than this job's lora", [](Train& t) { t.mutable_lora()->set_rank(2); }},
      {"was trained with another freeze", [](Train& t) { t.add_freeze("wte"); }},
      {"has no state for this job's optimizer.kind", [](Train& t) { t.mutable_optimizer()->mutable_adamw(); }},
      {"has seed 1, this job 2", [](Train& t) { t.set_seed(2); }},
      {"has another data.order", [](Train& t) { t.mutable_data()->set_order(DATA_ORDER_SEQUENTIAL); }},
      {"has step 40 done, and this job ends with step 40: set steps higher", [](Train& t) { t.set_steps(40); }},
  };
  for (const auto& [says, change] : rows) {
    Train other = job_;
    change(other);
    const absl::Status refused = CheckResumeFrom(path_, other).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
    EXPECT_THAT(std::string(refused.message()), StartsWith(absl::StrCat(Directory(40), " ", says)));
  }
}

TEST_F(CheckStartTest, TheNewestWholeCheckpointCounts) {
  EXPECT_EQ(CheckResumeFrom(path_, job_).status(), absl::NotFoundError(path_ + " is not a checkpoint and holds none"));
  WriteRun(10), WriteRun(20);
  Dump(Directory(20) + "/manifest.json", "{");
  EXPECT_EQ(CheckResumeFrom(path_, job_).value().step(), 10u);
  EXPECT_EQ(CheckModelFrom(path_, job_).value().step(), 10u);
  Dump(Directory(10) + "/manifest.json", "{");
  EXPECT_EQ(CheckResumeFrom(path_, job_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckStartTest, WeightsOfAnotherModelDoNotFit) {
  EXPECT_EQ(CheckModelFrom(path_, job_).status().code(), absl::StatusCode::kNotFound) << "an empty folder";
  WriteRun(10);
  EXPECT_TRUE(CheckModelFrom(path_, job_).ok());
  Train deeper = job_;
  deeper.mutable_model()->mutable_gpt2()->set_layers(2);
  const absl::Status refused = CheckModelFrom(path_, deeper).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), Directory(10) + " is of another model: n_layer 1, but model.layers is 2");
  EXPECT_EQ(CheckConfig(job_.model(), "hf", deeper.model()),
            absl::InvalidArgumentError("hf/config.json says n_layer 1, but model.layers is 2"));
}

// The trainer loads only the tensors that the new job has, and scales adapters as the new job says.
TEST_F(CheckStartTest, AdaptersThatTheNewJobDoesNotComputeAreRefused) {
  const Train plain = job_;
  WriteRun(10);
  job_.mutable_lora()->set_rank(2), job_.mutable_lora()->set_alpha(4);
  EXPECT_TRUE(CheckModelFrom(Directory(10), job_).ok()) << "adapters of a model that had none are new";
  job_.mutable_lora()->add_targets("attn.c_attn"), job_.mutable_lora()->add_targets("mlp.c_fc");
  WriteRun(20);
  const auto changed = [&](const std::function<void(Lora&)>& change) {
    Train job = job_;
    change(*job.mutable_lora());
    return job;
  };
  EXPECT_TRUE(CheckModelFrom(path_, job_).ok());
  EXPECT_TRUE(CheckModelFrom(path_, changed([](Lora& l) { l.clear_targets(); })).ok()) << "more of them";
  const std::string attention = "h.0.attn.c_attn.weight with rank 2 and alpha 4, and this job has ";
  const struct {
    std::string says;
    Train job;
  } rows[] = {
      {attention + "none there", plain},
      {"h.0.mlp.c_fc.weight with rank 2 and alpha 4, and this job has none there",
       changed([](Lora& l) { l.mutable_targets()->RemoveLast(); })},
      {attention + "one with rank 2 and alpha 2", changed([](Lora& l) { l.set_alpha(2); })},
      {attention + "one with rank 4 and alpha 8", changed([](Lora& l) { l.set_rank(4), l.set_alpha(8); })},
  };
  for (const auto& [says, job] : rows) {
    EXPECT_EQ(
        CheckModelFrom(path_, job).status(),
        absl::InvalidArgumentError(absl::StrCat(
            Directory(20), " has an adapter of ", says, ": give this job the same lora, or merge the checkpoint's ",
            "adapters into its weights with `muster export ", Directory(20), " OUT`, and set model.from to OUT")));
  }
  EXPECT_THAT(
      std::string(CheckResumeFrom(path_, plain).status().message()),
      HasSubstr("other adapters than this job's lora; to start a new run, merge the checkpoint's adapters into"));
}

}  // namespace
}  // namespace muster::checkpoint
