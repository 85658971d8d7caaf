// What one user may take, and how much of the past is kept.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/core/core.h"
#include "coordinator/core/world_test.h"

namespace muster::core {
namespace {

using ::testing::HasSubstr;

class Limits : public testing::Test {
 protected:
  Outcome SubmitAs(const std::string& user, const JobSpec& spec) {
    const std::string n = absl::StrCat("x", ++requests_);
    return w_.Do(SubmitJob{n, user, spec, n});
  }
  void With(const std::function<void(WorldOptions&)>& change) {
    change(w_.options);
    w_.Restart();
  }
  std::vector<std::string> Ids(const std::vector<Job>& jobs) const {
    std::vector<std::string> ids;
    for (const Job& job : jobs) ids.push_back(job.id());
    return ids;
  }
  World w_{AnyWorld()};
  int requests_ = 0;
};

TEST_F(Limits, OneUserCannotFillTheQueue) {
  With([](WorldOptions& o) { o.max_queued_jobs_of_user = 2; });
  EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok());
  EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok());
  const absl::Status third = SubmitAs("ann", Spec("a")).status;
  EXPECT_TRUE(absl::IsResourceExhausted(third));
  EXPECT_THAT(std::string(third.message()), HasSubstr("ann has 2 queued jobs, and the limit is 2"));
  EXPECT_TRUE(SubmitAs("bob", Spec("b")).status.ok());
  w_.Return(Hello("n", 1));  // one of ann's starts
  EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok());
}

TEST_F(Limits, TheQueueHasABoundForAll) {
  With([](WorldOptions& o) { o.max_queued_jobs = 3; });
  std::vector<JobId> ids;
  for (const char* user : {"ann", "bob", "eve"}) ids.push_back(SubmitAs(user, Spec("a")).job);
  const absl::Status fourth = SubmitAs("zoe", Spec("a")).status;
  EXPECT_TRUE(absl::IsResourceExhausted(fourth));
  EXPECT_THAT(std::string(fourth.message()), HasSubstr("the queue is full: 3 jobs are waiting"));
  w_.Do(CancelJob{ids[0]});
  EXPECT_TRUE(SubmitAs("zoe", Spec("a")).status.ok());
}

// As it is stored and sent to every rank, with all that was filled in.
TEST_F(Limits, AResolvedSpecHasABound) {
  JobSpec spec = Spec("a");
  spec.mutable_train()->mutable_data()->set_tokens("/" + std::string(60 * 1024, 'x'));
  EXPECT_TRUE(SubmitAs("ann", spec).status.ok());
  spec.mutable_train()->mutable_data()->set_tokens("/" + std::string(64 * 1024, 'x'));
  const absl::Status larger = SubmitAs("ann", spec).status;
  EXPECT_TRUE(absl::IsInvalidArgument(larger));
  EXPECT_THAT(std::string(larger.message()), HasSubstr("the limit is 65536"));
}

TEST_F(Limits, NodeSelectorsOfAUserInTheQueue) {
  const auto on_rack = [&](const std::string& user, int rack) {
    JobSpec spec = Spec("a");
    spec.mutable_resources()->add_node_selector(absl::StrCat("rack=", rack));
    return SubmitAs(user, spec);
  };
  JobId first;
  for (int rack = 0; rack < 256; ++rack) {
    const Outcome decision = on_rack("ann", rack);
    ASSERT_TRUE(decision.status.ok()) << rack << ": " << decision.status;
    if (rack == 0) first = decision.job;
  }
  EXPECT_TRUE(on_rack("ann", 5).status.ok()) << "as others of hers";
  EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok()) << "without one";
  EXPECT_TRUE(on_rack("bob", 999).status.ok());
  const absl::Status more = on_rack("ann", 256).status;
  EXPECT_TRUE(absl::IsResourceExhausted(more));
  EXPECT_THAT(
      std::string(more.message()),
      HasSubstr("ann has jobs in the queue with 256 different node selectors, topologies and numbers of ranks"));
  JobSpec larger = Gang("a", 2);
  larger.mutable_resources()->add_node_selector("rack=5");
  EXPECT_TRUE(absl::IsResourceExhausted(SubmitAs("ann", larger).status)) << "other ranks are another look at all nodes";
  JobSpec together = Gang("a", 2);
  together.mutable_resources()->mutable_topology()->set_required("rack");
  EXPECT_TRUE(absl::IsResourceExhausted(SubmitAs("ann", together).status)) << "as is a topology";
  EXPECT_TRUE(SubmitAs("ann", Gang("a", 2)).status.ok()) << "without one";
  w_.Do(CancelJob{first});
  EXPECT_TRUE(on_rack("ann", 256).status.ok());
}

TEST_F(Limits, SubmitsOfAUserAreCountedByTheMinute) {
  With([](WorldOptions& o) { o.max_submits_of_user = 3; });
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok());
  EXPECT_TRUE(absl::IsResourceExhausted(SubmitAs("ann", Spec("a")).status));
  EXPECT_TRUE(w_.Do(SubmitJob{"x1", "ann", Spec("a"), "x1"}).status.ok()) << "a retry is no new job";
  EXPECT_TRUE(SubmitAs("bob", Spec("b")).status.ok());
  w_.clock.Advance(absl::Seconds(61));
  EXPECT_TRUE(SubmitAs("ann", Spec("a")).status.ok());
}

TEST_F(Limits, PrioritiesHaveARange) {
  With([](WorldOptions& o) { o.lowest_priority = -10, o.highest_priority = 5; });
  EXPECT_TRUE(SubmitAs("ann", Spec("a", 5)).status.ok());
  EXPECT_TRUE(SubmitAs("ann", Spec("a", -10)).status.ok());
  for (const int priority : {6, -11}) {
    const absl::Status status = SubmitAs("ann", Spec("a", priority)).status;
    EXPECT_EQ(status.message(), absl::StrCat("priority: must be -10 to 5 on this coordinator, got ", priority));
  }
}

// Her second job waits although slots are free, and holds back no one.
TEST_F(Limits, RunningRanksOfAUser) {
  With([](WorldOptions& o) { o.max_running_ranks_of_user = 2; });
  w_.Return(Hello("n", 8));
  const JobId first = SubmitAs("ann", Gang("g", 2)).job, second = SubmitAs("ann", Spec("a")).job;
  EXPECT_EQ(w_.State(first), JOB_STATE_STARTING);
  EXPECT_EQ(w_.State(second), JOB_STATE_QUEUED);
  EXPECT_THAT(w_.Get(second).reason(), HasSubstr("waiting for other jobs of ann: the limit is 2 running ranks a user"));
  EXPECT_EQ(w_.State(SubmitAs("bob", Spec("b")).job), JOB_STATE_STARTING);
  const absl::Status never = SubmitAs("bob", Gang("g", 3)).status;
  EXPECT_THAT(std::string(never.message()),
              HasSubstr("resources.ranks: 3 is above this coordinator's limit of 2 running ranks a user"));
  w_.Do(CancelJob{first});
  for (const uint32_t rank : {0u, 1u}) w_.ReportRank(first, rank, RANK_STATE_EXITED, RankExit::STOPPED);
  EXPECT_EQ(w_.State(second), JOB_STATE_STARTING);
}

// Else the second could start first, if its plan is made first.
TEST_F(Limits, AJobWhosePlanIsBeingMadeCountsAsRunning) {
  With([](WorldOptions& o) { o.max_running_ranks_of_user = 2; });
  w_.Return(Hello("n", 8));
  w_.held = true;
  const JobId first = SubmitAs("ann", Gang("g", 2)).job, second = SubmitAs("ann", Spec("a")).job;
  EXPECT_EQ(w_.requested.size(), 1u);
  EXPECT_THAT(w_.Get(first).reason(), HasSubstr("its plan is being computed"));
  EXPECT_THAT(w_.Get(second).reason(), HasSubstr("the limit is 2 running ranks a user"));
}

// A pass compares each queued job with the limits. It does not go through all jobs for each.
TEST_F(Limits, ALimitOfRunningRanksCostsALongQueueLittle) {
  constexpr int kQueued = 5'000;
  Job job;
  *job.mutable_spec() = Spec("a");
  job.set_owner("ann");
  job.set_state(JOB_STATE_QUEUED);
  std::vector<Row> rows;
  for (int i = 1; i <= kQueued; ++i) {
    job.set_id(absl::StrCat("a-", i));
    job.set_request_id(job.id());
    job.set_sequence(static_cast<uint64_t>(i));
    job.mutable_spec()->mutable_train()->mutable_checkpoint()->set_path("/c/" + job.id());
    rows.push_back({"job/" + job.id(), job.SerializeAsString()});
  }
  const auto shortest = [&](uint32_t limit) {
    WorldOptions options = AnyWorld();
    options.max_running_ranks_of_user = limit;
    const auto core = Core::Recover(options, rows, w_.clock.Read());
    EXPECT_TRUE(core.ok()) << core.status();
    absl::Duration best = absl::InfiniteDuration();
    for (int i = 0; i < 3; ++i) {
      const absl::Time start = absl::Now();
      EXPECT_TRUE((*core)->Handle(SubmitJob{absl::StrCat("x", i), "bob", Spec("b"), ""}, w_.clock.Read()).status.ok());
      EXPECT_EQ((*core)->ListJobs(false).size(), static_cast<size_t>(kQueued + i + 1));
      best = std::min(best, absl::Now() - start);
    }
    return best;
  };
  const absl::Duration without = shortest(0), with = shortest(5);
  EXPECT_LT(with, 5 * without) << without;
}

TEST_F(Limits, OfTooManyEndedJobsTheFirstThatEndedGo) {
  With([](WorldOptions& o) { o.max_ended_jobs = 3; });
  std::vector<JobId> ids;
  for (int i = 0; i < 5; ++i) ids.push_back(SubmitAs("ann", Spec("a")).job);
  // In another order than they came.
  for (const int i : {4, 0, 1}) w_.Do(CancelJob{ids[static_cast<size_t>(i)]});
  EXPECT_EQ(w_.core->ListJobs(true).size(), 5u);
  const Outcome out = w_.Do(CancelJob{ids[2]});
  EXPECT_EQ(w_.core->Stored(ids[4]), nullptr);
  EXPECT_NE(w_.core->Stored(ids[0]), nullptr);
  int forgotten = 0;
  for (const Action& action : out.actions) {
    if (const auto* forget = std::get_if<ForgetJob>(&action)) forgotten += forget->job == ids[4] ? 1 : 100;
  }
  EXPECT_EQ(forgotten, 1) << "its history goes, too";
  EXPECT_FALSE(w_.rows.contains("job/" + ids[4].value()));
  EXPECT_EQ(w_.State(ids[3]), JOB_STATE_QUEUED) << "what has not ended stays";
  // An operator who keeps fewer: the rest goes at the next start, in as many commits as it takes.
  With([](WorldOptions& o) { o.max_ended_jobs = 1; });
  w_.Do(Tick{});
  EXPECT_EQ(Ids(w_.core->ListJobs(true)), (std::vector<std::string>{ids[3].value(), ids[2].value()}));
}

TEST_F(Limits, JobsThatEndedLongAgoGo) {
  With([](WorldOptions& o) { o.keep_ended_for = absl::Hours(24); });
  const JobId old = SubmitAs("ann", Spec("a")).job, other = SubmitAs("ann", Spec("a")).job;
  w_.Do(CancelJob{old});
  w_.clock.Advance(absl::Hours(23));
  w_.Do(CancelJob{other});
  ASSERT_TRUE(w_.core->NextTick().has_value());
  EXPECT_EQ(*w_.core->NextTick() - w_.clock.Read().steady, absl::Hours(1));
  w_.clock.Advance(absl::Hours(1));
  w_.Do(Tick{});
  EXPECT_EQ(Ids(w_.core->ListJobs(true)), std::vector<std::string>{other.value()});
}

TEST_F(Limits, ListsComeInPages) {
  w_.Return(Hello("n", 1));
  std::vector<JobId> ids;
  for (int i = 0; i < 7; ++i) ids.push_back(SubmitAs("ann", Spec("a")).job);
  for (const int i : {3, 5, 4}) w_.Do(CancelJob{ids[static_cast<size_t>(i)]});
  const std::vector<std::string> all = Ids(w_.core->ListJobs(true));
  ASSERT_EQ(all.size(), 7u);
  for (const size_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u}) {
    std::vector<std::string> seen;
    std::string page;
    int pages = 0;
    do {
      const auto part = w_.core->ListJobs(true, page, rows, 1 << 20);
      ASSERT_TRUE(part.ok());
      EXPECT_LE(part->jobs.size(), rows);
      for (const Job& job : part->jobs) seen.push_back(job.id());
      page = part->next;
    } while (!page.empty() && ++pages < 20);
    EXPECT_EQ(seen, all) << rows;
  }
  EXPECT_EQ(w_.core->ListJobs(true, "", 100, 1)->jobs.size(), 1u) << "by bytes: at least one";
  EXPECT_EQ(w_.core->ListJobs(false, "", 100, 1 << 20)->jobs.size(), 4u);
  for (const char* wrong : {"x", "n", "e1x", "7"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(w_.core->ListJobs(true, wrong, 1, 1).status())) << wrong;
  }
}

// What `muster ps -a` reads: pages that fit into a message, whatever has ended; and no turn looks at what has ended.
TEST_F(Limits, AHundredThousandEndedJobsAreListed) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  constexpr int kJobs = 20'000;  // there the time is measured in minutes
#else
  constexpr int kJobs = 100'000;
#endif
  Job job;
  *job.mutable_spec() = Spec("a");
  job.set_owner("ann");
  job.set_state(JOB_STATE_COMPLETED);
  std::vector<Row> rows;
  for (int i = 1; i <= kJobs; ++i) {
    job.set_id(absl::StrCat("a-", i));
    job.set_request_id(job.id());
    job.set_sequence(static_cast<uint64_t>(i));
    job.mutable_spec()->mutable_train()->mutable_checkpoint()->set_path("/c/" + job.id());
    rows.push_back({"job/" + job.id(), job.SerializeAsString()});
  }
  const auto core = Core::Recover(w_.options, rows, w_.clock.Read());
  ASSERT_TRUE(core.ok()) << core.status();
  std::string page;
  int seen = 0, pages = 0;
  uint64_t last = kJobs + 1;
  do {
    const auto part = (*core)->ListJobs(true, page, 10'000, 3 << 20);
    ASSERT_TRUE(part.ok());
    size_t bytes = 0;
    for (const Job& listed : part->jobs) {
      ASSERT_EQ(listed.sequence(), --last);
      bytes += listed.ByteSizeLong();
    }
    EXPECT_LE(bytes, size_t{4} << 20);
    seen += static_cast<int>(part->jobs.size());
    page = part->next;
  } while (!page.empty() && ++pages < 1000);
  EXPECT_EQ(seen, kJobs);
  EXPECT_GE(pages, kJobs / 20'000);
  EXPECT_EQ((*core)->CountJobs().at(JOB_STATE_COMPLETED), static_cast<uint64_t>(kJobs));
  EXPECT_EQ((*core)->Handle(CancelJob{JobId("a-1")}, w_.clock.Read()).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace muster::core
