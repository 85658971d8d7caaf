#include "worker/trainer/tracer.h"

#include <gtest/gtest.h>

#include <thread>

#include "models/inventory.h"
#include "worker/engine/configure.h"
#include "worker/tasks/language_model.h"

namespace muster::trainer {
namespace {

std::unique_ptr<engine::Engine> MakeEngine() {
  Train train;
  Gpt2& g = *train.mutable_model()->mutable_gpt2();
  g.set_layers(2), g.set_heads(2), g.set_width(32), g.set_vocabulary(61), g.set_context(16);
  train.mutable_strategy()->mutable_single();
  train.mutable_batch()->set_sequences(4);
  train.mutable_batch()->set_microbatch(2);
  train.mutable_optimizer()->mutable_sgd();
  train.mutable_optimizer()->set_clip_norm(1);
  return engine::Engine::Create(engine::Configure(train, *models::MakeInventory(train.model()))->config).value();
}

std::optional<StepTraceRequest> Request(uint64_t id, uint32_t steps) {
  StepTraceRequest request;
  request.set_id(id);
  request.set_steps(steps);
  return request;
}

struct TracerTest : testing::Test {
  std::optional<StepTrace> Step() {
    tracer.BeginStep(*engine);
    const auto begin = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    tracer.Host("data", begin);
    EXPECT_TRUE(engine->Step(tasks::TokenBatch(4, tokens, 4), 0.01).ok());
    return tracer.EndStep(*engine);
  }
  std::unique_ptr<engine::Engine> engine = MakeEngine();
  std::vector<uint32_t> tokens = std::vector<uint32_t>(4 * 17, 3);
  Tracer tracer;
};

TEST_F(TracerTest, GrantsEachRequestOnce) {
  EXPECT_FALSE(Step().has_value());
  tracer.Request(Request(7, 2));
  EXPECT_FALSE(Step()->last());
  tracer.Request(Request(7, 2));  // the assignment came again
  EXPECT_TRUE(Step()->last());
  EXPECT_FALSE(Step().has_value());
  tracer.Request(std::nullopt);
  tracer.Request(Request(8, 1));
  const std::optional<StepTrace> trace = Step();
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->request_id(), 8u);
  EXPECT_EQ(trace->step(), 5u);
}

TEST_F(TracerTest, SaysWhereTheStepWent) {
  // A busy machine may stop a step between two spans, but not every time.
  bool mostly_in_spans = false;
  for (uint64_t id = 1; id <= 20 && !mostly_in_spans; ++id) {
    tracer.Request(Request(id, 1));
    const StepTrace trace = *Step();
    // Two microbatches of four units, forward and backward, and what follows them; and the data.
    std::vector<std::string> seen;
    uint64_t end = 0, sum = 0;
    for (const Span& span : trace.spans()) {
      seen.push_back(trace.names(static_cast<int>(span.name())));
      if (span.lane() == LANE_COMPUTE) {
        EXPECT_GE(span.begin(), end) << "ops of one stream overlap";
        end = span.begin() + span.nanoseconds();
      }
      sum += span.nanoseconds();
      EXPECT_LE(span.begin() + span.nanoseconds(), trace.nanoseconds());
    }
    ASSERT_EQ(seen.size(), 1 + 1 + 2 * 2 * 4 + 2u);
    EXPECT_EQ(seen.front(), "data");
    EXPECT_EQ(seen[1], "Prepare");
    EXPECT_EQ(seen[2], "Forward embedding m0");
    EXPECT_EQ(seen.back(), "OptimizerStep");
    mostly_in_spans = sum > trace.nanoseconds() / 2;
  }
  EXPECT_TRUE(mostly_in_spans) << "most of the step is in no span";
}

}  // namespace
}  // namespace muster::trainer
