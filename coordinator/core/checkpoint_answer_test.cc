#include "coordinator/core/checkpoint_answer.h"

#include <gtest/gtest.h>

namespace muster::core {
namespace {

void Publish(Job& job, uint64_t generation, uint64_t step) {
  PublishedCheckpoint& checkpoint = *job.add_checkpoints();
  checkpoint.set_generation(generation);
  checkpoint.set_step(step);
}

// 0: none.
uint64_t StepOfAnswer(const CheckpointRequested& requested, const Job& job, bool over) {
  const std::optional<PublishedCheckpoint> answer = AnswerTo(requested, job, over);
  return answer.has_value() ? answer->step() : 0;
}

TEST(CheckpointAnswer, IsLaterThanTheStepsKnownAtTheRequest) {
  Job job;
  job.set_generation(2);
  const CheckpointRequested requested = RequestedNow(job, 17);
  EXPECT_EQ(StepOfAnswer(requested, job, false), 0u);
  Publish(job, 2, 16);
  EXPECT_EQ(StepOfAnswer(requested, job, false), 0u) << "its write began before the request";
  Publish(job, 2, 17);
  EXPECT_EQ(StepOfAnswer(requested, job, false), 0u);
  EXPECT_EQ(StepOfAnswer(requested, job, true), 17u) << "the last of a generation that is over";
  Publish(job, 2, 18);
  EXPECT_EQ(StepOfAnswer(requested, job, false), 18u);
}

TEST(CheckpointAnswer, IsLaterThanWhatWasPublishedByTheSameGeneration) {
  Job job;
  job.set_generation(3);
  Publish(job, 3, 40);
  EXPECT_EQ(RequestedNow(job, 31).after_step, 40u) << "reports may come later";
  EXPECT_EQ(RequestedNow(job, 41).after_step, 41u);
  job.set_generation(4);
  EXPECT_EQ(RequestedNow(job, 31).after_step, 31u) << "the next generation began again from an earlier one";
}

TEST(CheckpointAnswer, IsOfTheGenerationThatWasAsked) {
  Job job;
  job.set_generation(1);
  const CheckpointRequested requested = RequestedNow(job, 5);
  job.set_generation(2);
  Publish(job, 2, 9);
  EXPECT_EQ(StepOfAnswer(requested, job, true), 0u);
}

}  // namespace
}  // namespace muster::core
