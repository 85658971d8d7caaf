// A job of images from its first step to its export, by trainer processes under a fake worker.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/strings/str_cat.h"
#include "checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "testing/wait.h"
#include "worker/trainer/fake_trainer_server.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kImageSteps = 100;

class ImageJob : public ::testing::Test {
 protected:
  ImageJob() {
    WriteImages("images.bin", 400);
    WriteImages("test.bin", 100);
    spec_ = bench_.MakeJob();
    Train& train = *spec_.mutable_train();
    Resnet& model = *train.mutable_model()->mutable_resnet();
    model.set_depth(8), model.set_width(4);
    *train.mutable_model() = models::Resolve(train.model()).value();
    Data& data = *train.mutable_data();
    data.clear_tokens();
    data.set_images(bench_.Path("images.bin"));
    data.set_validation(bench_.Path("test.bin"));
    data.mutable_augmentation()->set_crop_padding(2);
    data.mutable_augmentation()->set_flip(true);
    for (int i = 0; i < 3; ++i) data.add_mean(0.4f), data.add_standard_deviation(0.3f);
    train.mutable_optimizer()->mutable_sgd()->set_momentum(0.9);
    train.mutable_optimizer()->set_lr(0.05);
    train.mutable_optimizer()->mutable_lr_schedule()->mutable_linear();
    train.mutable_batch()->set_sequences(20);
    train.mutable_batch()->set_microbatch(20);
    train.mutable_validation()->set_every_steps(30);
    train.mutable_validation()->set_sequences(1000);
    train.set_steps(kImageSteps);
  }

  // CIFAR-10's records, of four classes: the width of stripes, along or across, beside noise.
  std::string WriteImages(const std::string& name, int images) {
    std::ofstream out(bench_.Path(name), std::ios::binary);
    for (int i = 0; i < images; ++i) {
      const int label = (i * 7 + i / 10) % 4;
      out.put(static_cast<char>(label));
      for (int p = 0; p < 3072; ++p) {
        const int place = label < 2 ? p % 32 : p % 1024 / 32, stripe = (place + i) / (1 + label % 2 * 3) % 2;
        out.put(static_cast<char>(60 + 100 * stripe + (p * 31 + i * 17) % 29));
      }
    }
    return bench_.Path(name);
  }
  MetricPoint LastMetrics(const Assignment& assignment) {
    MetricPoint last;
    for (const Record& record : bench_.Records(assignment)) {
      if (record.has_metrics()) last = record.metrics();
    }
    return last;
  }
  nlohmann::json Eval(const std::string& model) {
    Process eval =
        StartTrainer({"eval", "--checkpoint", model, "--data", bench_.Path("test.bin"), "--json"}, bench_.Path("eval"));
    EXPECT_EQ(eval.Wait(), 0) << eval.Log();
    return nlohmann::json::parse(eval.Output(), nullptr, false);
  }

  Bench bench_;
  JobSpec spec_;
};

TEST_F(ImageJob, LearnsReportsItsTasksMetricsAndExports) {
  const Assignment assignment = bench_.Assign(spec_, 1);
  Process trainer = bench_.Start(assignment);
  ASSERT_EQ(trainer.Wait(), 0) << trainer.Log();
  const MetricPoint last = LastMetrics(assignment);
  EXPECT_EQ(last.step(), kImageSteps);
  EXPECT_GT(last.samples_per_second(), 0);
  EXPECT_FALSE(last.has_tokens_per_second());
  ASSERT_EQ(last.validation_size(), 2);
  EXPECT_EQ(last.validation(0).name(), "top1");
  EXPECT_EQ(last.validation(1).name(), "top5");
  EXPECT_GT(last.validation(0).value(), 0.7) << "of four classes";
  EXPECT_GE(last.validation(1).value(), last.validation(0).value());
  EXPECT_LT(last.validation_loss(), 1.2);

  const nlohmann::json evaluated = Eval(bench_.Path("checkpoints"));
  EXPECT_NEAR(evaluated.value("loss", 0.0), last.validation_loss(), 1e-5);
  EXPECT_NEAR(evaluated.value("top1", 0.0), last.validation(0).value(), 1e-9);
  EXPECT_EQ(evaluated.value("images", 0), 100);
  const std::string out = bench_.Path("export");
  Process exporting =
      StartTrainer({"export", "--checkpoint", bench_.Path("checkpoints"), "--out", out}, bench_.Path("exporting"));
  ASSERT_EQ(exporting.Wait(), 0) << exporting.Log();
  EXPECT_EQ(Eval(out), evaluated) << "weights, running statistics and the normalization of images are in the export";
  EXPECT_FALSE(std::filesystem::exists(out + "/generation_config.json"));
  const std::string imported = bench_.Path("imported"), again = bench_.Path("again");
  Process importing = StartTrainer({"import", "--from", out, "--out", imported}, bench_.Path("importing"));
  ASSERT_EQ(importing.Wait(), 0) << importing.Log();
  EXPECT_EQ(Eval(imported), evaluated) << "an imported checkpoint keeps the normalization";
  Process back = StartTrainer({"export", "--checkpoint", imported, "--out", again}, bench_.Path("back"));
  ASSERT_EQ(back.Wait(), 0) << back.Log();
  EXPECT_THAT(back.Output(), HasSubstr(" as torchvision reads it, "));
  EXPECT_EQ(Eval(again), evaluated);

  // A job that begins with them has their loss before it learns.
  JobSpec next = spec_;
  next.mutable_train()->mutable_model()->set_from(out);
  next.mutable_train()->mutable_checkpoint()->set_path(bench_.Path("next"));
  next.mutable_train()->mutable_optimizer()->set_lr(0);
  next.mutable_train()->set_steps(1);
  next.mutable_train()->mutable_model()->mutable_resnet()->set_batch_norm_momentum(1e-9);
  const Assignment second = bench_.Assign(next, 2);
  Process tuned = bench_.Start(second);
  ASSERT_EQ(tuned.Wait(), 0) << tuned.Log();
  EXPECT_NEAR(LastMetrics(second).validation_loss(), last.validation_loss(), 1e-5);

  Process sample = StartTrainer({"sample", "--checkpoint", bench_.Path("checkpoints")}, bench_.Path("sample"));
  EXPECT_NE(sample.Wait(), 0);
  EXPECT_THAT(sample.Log(), HasSubstr("only a language model can be sampled"));
}

TEST_F(ImageJob, KilledAndResumedEndsWithTheSameWeightsAndStatistics) {
  JobSpec undisturbed = spec_;
  undisturbed.mutable_train()->mutable_checkpoint()->set_path(bench_.Path("undisturbed"));
  const Assignment expected = bench_.Assign(undisturbed, 1);
  Process whole = bench_.Start(expected);
  ASSERT_EQ(whole.Wait(), 0) << whole.Log();
  Assignment assignment = bench_.Assign(spec_, 2);
  Process first = bench_.Start(assignment);
  ASSERT_TRUE(Eventually([&] { return bench_.StepOf(assignment) >= 25; })) << first.Log();
  first.Signal(SIGKILL);
  first.Wait();
  assignment = bench_.Assign(spec_, 3);
  bench_.Publish(assignment);
  ASSERT_GE(assignment.resume_from().step(), 10u);
  Process second = bench_.Start(assignment);
  ASSERT_EQ(second.Wait(), 0) << second.Log();
  EXPECT_EQ(bench_.NewestWeights(spec_), bench_.NewestWeights(undisturbed));
  // Statistics that no checkpoint has are in no weights; evaluations use them.
  EXPECT_EQ(LastMetrics(assignment).validation_loss(), LastMetrics(expected).validation_loss());
}

TEST_F(ImageJob, RefusesDataOfAnotherModel) {
  const auto refused = [&](const JobSpec& spec, uint64_t generation) {
    Process trainer = bench_.Start(bench_.Assign(spec, generation));
    EXPECT_NE(trainer.Wait(), 0);
    return trainer.Log();
  };
  JobSpec spec = spec_;
  spec.mutable_train()->mutable_model()->mutable_resnet()->set_classes(3);
  EXPECT_THAT(refused(spec, 1), HasSubstr("data.images: "));
  spec = spec_;
  spec.mutable_train()->mutable_model()->mutable_resnet()->set_image(28);
  EXPECT_THAT(refused(spec, 2),
              HasSubstr("has images of 3 x 32 x 32 (channels, height, width), the model reads 3 x 28 x 28"));
  spec = spec_;
  spec.mutable_train()->mutable_data()->set_images(bench_.Path("train.bin"));
  EXPECT_THAT(refused(spec, 3), HasSubstr("data.images: "));
}

}  // namespace
}  // namespace muster::trainer
