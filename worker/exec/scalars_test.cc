#include "worker/exec/scalars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace muster::exec {
namespace {

using ::testing::ElementsAre;

TensorBoardEvent Event(int64_t step, const std::string& tag, float value) {
  TensorBoardEvent event;
  event.set_step(step);
  TensorBoardEvent::Value& added = *event.mutable_summary()->add_value();
  added.set_tag(tag);
  added.set_simple_value(value);
  return event;
}

TEST(MetricNameOf, KnowsTheTagsOfTutorialsAndTrainers) {
  for (const char* tag : {"loss", "Loss/train", "train/loss", "train_loss", "train_loss_step", "training loss"}) {
    EXPECT_EQ(MetricNameOf(tag), "loss") << tag;
  }
  for (const char* tag : {"eval/loss", "val_loss", "Loss/val", "validation/loss"}) {
    EXPECT_EQ(MetricNameOf(tag), "validation_loss") << tag;
  }
  EXPECT_EQ(MetricNameOf("train/learning_rate"), "learning_rate");
  EXPECT_EQ(MetricNameOf("train/grad_norm"), "gradient_norm");
  EXPECT_EQ(MetricNameOf("train/train_loss"), "train/train_loss") << "the Trainer's mean over the whole run";
  EXPECT_EQ(MetricNameOf("lr-Adam/pg 1"), "lr-Adam/pg_1");
  EXPECT_EQ(MetricNameOf("caf\xc3\xa9"), "caf__");
  EXPECT_EQ(MetricNameOf(std::string(65, 'a')), "");
}

TEST(Scalars, JoinTheEventsOfAStep) {
  Scalars scalars;
  scalars.Add(Event(1, "train/loss", 0.5));
  scalars.Add(Event(1, "accuracy", 0.25));
  scalars.Add(Event(2, "train/loss", 0.75));
  std::vector<MetricPoint> points = scalars.Take(/*all=*/false);
  ASSERT_EQ(points.size(), 1u) << "step 2 may get more";
  EXPECT_EQ(points[0].step(), 1u);
  EXPECT_EQ(points[0].loss(), 0.5);
  ASSERT_EQ(points[0].reported_size(), 1);
  EXPECT_EQ(points[0].reported(0).name(), "accuracy");
  EXPECT_EQ(points[0].reported(0).value(), 0.25);
  points = scalars.Take(/*all=*/true);
  ASSERT_EQ(points.size(), 1u);
  EXPECT_EQ(points[0].loss(), 0.75);
}

// tensorboard.plugins.scalar.summary_v2, and SummaryWriter.add_scalar(new_style=True).
TEST(Scalars, ReadNumbersInTensors) {
  TensorBoardEvent event;
  event.set_step(1);
  const auto add = [&](const char* tag, const char* plugin) {
    TensorBoardEvent::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(tag);
    value.mutable_metadata()->mutable_plugin_data()->set_plugin_name(plugin);
    return value.mutable_tensor();
  };
  TensorBoardEvent::Tensor* tensor = add("a", "scalars");
  tensor->set_dtype(1);
  tensor->add_float_val(0.5);
  const double number = 0.1;
  tensor = add("b", "scalars");
  tensor->set_dtype(2);
  tensor->set_tensor_content(std::string(reinterpret_cast<const char*>(&number), sizeof number));
  tensor = add("a histogram", "histograms");
  tensor->set_dtype(1);
  tensor->add_float_val(0.5);
  tensor = add("two numbers", "scalars");
  tensor->set_dtype(1);
  tensor->add_float_val(1);
  tensor->add_float_val(2);
  event.mutable_summary()->add_value()->set_tag("an image");
  Scalars scalars;
  scalars.Add(event);
  const std::vector<MetricPoint> points = scalars.Take(true);
  ASSERT_EQ(points.size(), 1u);
  ASSERT_EQ(points[0].reported_size(), 2) << points[0].DebugString();
  EXPECT_EQ(points[0].reported(0).value(), 0.5);
  EXPECT_EQ(points[0].reported(1).value(), 0.1);
}

TEST(Scalars, AnUnlikelyStepIsLeftOut) {
  Scalars scalars;
  scalars.Add(Event(-1, "loss", 1));
  scalars.Add(Event(INT64_MAX, "loss", 1));
  EXPECT_EQ(scalars.size(), 0u);
}

TEST(Thin, KeepsTheLastOfEvenlySpacedPoints) {
  const auto steps = [](size_t n, size_t most) {
    std::vector<MetricPoint> points(n);
    for (size_t i = 0; i < n; ++i) points[i].set_step(i + 1);
    std::vector<uint64_t> kept;
    for (const MetricPoint& point : Thin(std::move(points), most)) kept.push_back(point.step());
    return kept;
  };
  EXPECT_THAT(steps(10, 5), ElementsAre(2, 4, 6, 8, 10));
  EXPECT_THAT(steps(3, 5), ElementsAre(1, 2, 3));
  EXPECT_THAT(steps(7, 2), ElementsAre(4, 7));
  EXPECT_THAT(steps(7, 0), ElementsAre());
}

TEST(Thin, DropsValidationLossesLast) {
  std::vector<MetricPoint> points(100);
  for (size_t i = 0; i < points.size(); ++i) points[i].set_step(i + 1);
  for (const size_t step : {7u, 50u, 93u}) points[step - 1].set_validation_loss(1);
  std::vector<uint64_t> kept;
  for (const MetricPoint& point : Thin(points, 5)) kept.push_back(point.step());
  EXPECT_THAT(kept, ElementsAre(7, 50, 51, 93, 100));
  for (MetricPoint& point : points) point.set_validation_loss(1);
  EXPECT_EQ(Thin(points, 5).size(), 5u);
}

}  // namespace
}  // namespace muster::exec
