#include "coordinator/server/traces.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::server {
namespace {

using testing::ElementsAre;

struct TracesTest : testing::Test {
  static SteadyTime At(int second) { return SteadyTime::FromNanoseconds(int64_t{second} * 1'000'000'000); }
  void Begin(uint64_t request_id, const std::vector<uint32_t>& ranks) {
    traces.Begin({JobId("a"), 1}, request_id, ranks, At(10), [this](Traces::Result t) {
      ++calls;
      result = std::move(t);
    });
  }
  void Report(uint32_t rank, uint64_t request_id, uint64_t step, bool last, uint64_t generation = 1) {
    StepTrace trace;
    trace.set_request_id(request_id);
    trace.set_step(step);
    trace.set_last(last);
    traces.Add({JobId("a"), generation, rank}, trace);
  }
  Traces traces;
  Traces::Result result;
  int calls = 0;
};

TEST_F(TracesTest, EndsWhenEveryRankHasReportedItsLastStep) {
  Begin(5, {0, 2});
  Report(0, 5, 7, false);
  Report(0, 5, 8, true);
  Report(1, 5, 8, true);     // not requested
  Report(2, 4, 8, true);     // another request_id
  Report(2, 5, 8, true, 2);  // another generation
  EXPECT_EQ(calls, 0);
  Report(2, 5, 8, true);
  ASSERT_EQ(calls, 1);
  EXPECT_TRUE(result.status.ok());
  EXPECT_TRUE(result.missing.empty());
  ASSERT_EQ(result.ranks.size(), 2u);
  EXPECT_EQ(result.ranks[0].steps_size(), 2);
  EXPECT_EQ(result.ranks[1].rank(), 2u);
  Report(2, 5, 9, true);
  EXPECT_EQ(calls, 1);
}

TEST_F(TracesTest, AtTheDeadlineGivesWhatHasComeAndNamesTheOthers) {
  Begin(5, {0, 1, 2});
  Report(0, 5, 7, true);
  Report(1, 5, 7, false);
  EXPECT_EQ(traces.NextDeadline(), At(10));
  traces.Expire(At(9));
  EXPECT_EQ(calls, 0);
  traces.Expire(At(10));
  ASSERT_EQ(calls, 1);
  EXPECT_TRUE(result.status.ok());
  EXPECT_THAT(result.missing, ElementsAre(1, 2));
  EXPECT_EQ(result.ranks[1].steps_size(), 1);
  EXPECT_FALSE(traces.NextDeadline().has_value());
}

TEST_F(TracesTest, EndsWithItsGenerationOrItsCaller) {
  Begin(5, {0});
  traces.End({JobId("a"), 2});
  EXPECT_EQ(calls, 0);
  traces.End({JobId("a"), 1});
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(absl::IsAborted(result.status));
  Begin(6, {0});
  traces.Cancel(6);
  EXPECT_TRUE(absl::IsCancelled(result.status));
  traces.Cancel(6);
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace muster::server
