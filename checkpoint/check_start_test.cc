#include "checkpoint/check_start.h"

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_fixture_test.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"

namespace muster::checkpoint {
namespace {

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
  EXPECT_EQ(CheckModelFrom(path_, job_.model()).value().step(), 10u);
  Dump(Directory(10) + "/manifest.json", "{");
  EXPECT_EQ(CheckResumeFrom(path_, job_).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(CheckStartTest, WeightsOfAnotherModelDoNotFit) {
  EXPECT_EQ(CheckModelFrom(path_, job_.model()).status().code(), absl::StatusCode::kNotFound) << "an empty folder";
  WriteRun(10);
  EXPECT_TRUE(CheckModelFrom(path_, job_.model()).ok());
  Model deeper = job_.model();
  deeper.mutable_gpt2()->set_layers(2);
  const absl::Status refused = CheckModelFrom(path_, deeper).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), Directory(10) + " is of another model: n_layer 1, but model.layers is 2");
  EXPECT_EQ(CheckConfig(job_.model(), "hf", deeper),
            absl::InvalidArgumentError("hf/config.json says n_layer 1, but model.layers is 2"));
}

}  // namespace
}  // namespace muster::checkpoint
