// Plans that take long, beside calls that must not: the real server, with its pool.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

constexpr int kOtherAnswers = 10;

// 64 ranks x 1,000 layers x 200 microbatches.
JobSpec HugeSpec() {
  JobSpec spec = SmallSpec("huge");
  spec.mutable_resources()->set_ranks(64);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_layers(1000);
  spec.mutable_train()->mutable_batch()->set_sequences(64 * 200);
  spec.mutable_train()->mutable_batch()->set_microbatch(1);
  spec.mutable_train()->mutable_strategy()->mutable_auto_();
  spec.mutable_train()->mutable_parallel()->set_pipeline(1);
  return spec;
}

// It fits no slot of a byte, and neither does anything that would be advised.
JobSpec PoisonSpec() {
  JobSpec spec = SmallSpec("poison");
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_XL);
  spec.mutable_train()->mutable_batch()->set_sequences(1 << 20);
  return spec;
}

class PlanningTest : public ServerFixture {
 protected:
  grpc::Status Plan(const JobSpec& spec, PlanReply* reply, uint64_t memory_bytes = 0,
                    absl::Duration deadline = absl::Minutes(10)) {
    PlanRequest request;
    *request.mutable_spec() = spec;
    request.set_memory_bytes(memory_bytes);
    return client_->jobs().Plan(client_->Context(deadline).get(), request, reply);
  }
  // No plan is over before others have been answered since it began. How soon they are is bench/planning's question:
  // here the whole machine may be busy.
  void ExpectThatOthersAreAnsweredMeanwhile() {
    options_.plans.maker = [this](const PlanQuestion& question, strategies::Budget* budget) {
      const int before = answered_;
      absl::StatusOr<spec::MadePlan> made = spec::MakePlan(question.spec, question.on, budget);
      most_meanwhile_ = std::max<int>(most_meanwhile_, answered_ - before);
      EXPECT_TRUE(Eventually([&] { return answered_ >= before + kOtherAnswers; })) << "others wait for the plan";
      ++plans_;
      return made;
    };
  }
  // Plans while others call.
  grpc::Status PlanBesideOthers(const JobSpec& spec, PlanReply* reply) {
    std::atomic<bool> over = false;
    grpc::Status status;
    std::thread planner([&] {
      status = Plan(spec, reply, 1);
      over = true;
    });
    Client other(address());
    while (!over) {
      ListJobsReply jobs;
      EXPECT_TRUE(other.jobs().List(other.Context().get(), ListJobsRequest(), &jobs).ok());
      ++answered_;
    }
    planner.join();
    return status;
  }

  std::atomic<int> answered_ = 0, most_meanwhile_ = 0, plans_ = 0;
};

TEST_F(PlanningTest, OthersAreAnsweredWhileALargePlanIsMade) {
  ExpectThatOthersAreAnsweredMeanwhile();
  Start();
  PlanReply reply;
  const grpc::Status status = PlanBesideOthers(HugeSpec(), &reply);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.candidates_size(), 7);
  EXPECT_NE(reply.unfit(), "");
  EXPECT_GE(most_meanwhile_, kOtherAnswers) << "it takes seconds";
}

// Regression: it kept the coordinator busy for 52 s and then ended it by its memory.
TEST_F(PlanningTest, ThePoisonPillIsPlannedAndRefused) {
  ExpectThatOthersAreAnsweredMeanwhile();
  Start();
  PlanReply reply;
  const grpc::Status status = PlanBesideOthers(PoisonSpec(), &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(reply.unfit(), testing::HasSubstr("no configuration fits"));
  EXPECT_GE(plans_, 1);
}

// As a job it came back after each restart.
TEST_F(PlanningTest, ThePoisonPillAsAJobWaitsAndHarmsNoOne) {
  Start();
  SubmitReply reply;
  ASSERT_TRUE(client_->Submit("poison", PoisonSpec(), &reply).ok());
  const std::string job = reply.job().id();
  for (int start = 0; start < 2; ++start) {
    FakeWorker worker(address(), {.incarnation = absl::StrCat("i", start), .memory_bytes = 1});
    ASSERT_TRUE(worker.WaitForWelcome());
    GetJobReply found;
    EXPECT_TRUE(Eventually(
        [&] {
          EXPECT_TRUE(client_->Get(job, &found).ok());
          return absl::StrContains(found.job().reason(), "needs 1 slot of at least ");
        },
        absl::Minutes(2)))
        << found.job().reason();
    EXPECT_EQ(found.job().state(), JOB_STATE_QUEUED);
    server_.reset();
    Start();
  }
  CancelRequest cancel;
  cancel.set_job(job);
  CancelReply cancelled;
  EXPECT_TRUE(client_->jobs().Cancel(client_->Context().get(), cancel, &cancelled).ok());
}

TEST_F(PlanningTest, WhatExceedsTheBudgetIsRefusedWithWhatToChange) {
  options_.plans.limits.work = 200'000;
  Start();
  PlanReply plan;
  const grpc::Status planned = Plan(HugeSpec(), &plan);
  EXPECT_EQ(planned.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(planned.error_message(), testing::HasSubstr("of 1002 units"));
  EXPECT_THAT(planned.error_message(), testing::HasSubstr("raise batch.microbatch"));
  SubmitReply reply;
  const grpc::Status submitted = client_->Submit("huge", HugeSpec(), &reply);
  EXPECT_EQ(submitted.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(submitted.error_message(), planned.error_message());
  ListJobsReply jobs;
  ASSERT_TRUE(client_->jobs().List(client_->Context().get(), ListJobsRequest(), &jobs).ok());
  EXPECT_EQ(jobs.jobs_size(), 0);
}

TEST_F(PlanningTest, AStoredJobThatExceedsItFails) {
  Start();
  const std::string job = client_->MustSubmit("a");
  server_.reset();
  options_.plans.limits.work = 10;
  Start();
  EXPECT_EQ(client_->StateOf(job), JOB_STATE_QUEUED);
  FakeWorker worker(address(), {});
  EXPECT_TRUE(Eventually([&] { return client_->StateOf(job) == JOB_STATE_FAILED; }));
  GetJobReply found;
  ASSERT_TRUE(client_->Get(job, &found).ok());
  EXPECT_THAT(found.job().reason(), testing::StartsWith("it cannot be planned: planning stops at its limit of work: "));
}

TEST_F(PlanningTest, AClientThatGoesIsNotWorkedFor) {
  std::atomic<bool> begun = false, given_up = false;
  options_.plans.maker = [&](const PlanQuestion&, strategies::Budget* budget) -> absl::StatusOr<spec::MadePlan> {
    begun = true;
    for (;;) {
      const absl::Status status = budget->Spend(0, [] { return std::string("nothing"); });
      if (!status.ok()) {
        given_up = absl::IsCancelled(status);
        return status;
      }
      std::this_thread::yield();
    }
  };
  Start();
  std::unique_ptr<grpc::ClientContext> context = client_->Context();
  std::thread caller([&] {
    PlanRequest request;
    *request.mutable_spec() = SmallSpec("a");
    PlanReply reply;
    EXPECT_EQ(client_->jobs().Plan(context.get(), request, &reply).error_code(), grpc::StatusCode::CANCELLED);
  });
  EXPECT_TRUE(Eventually([&] { return begun.load(); }));
  context->TryCancel();
  caller.join();
  EXPECT_TRUE(Eventually([&] { return given_up.load(); }));
  // At a shutdown no one is worked for either.
  begun = given_up = false;
  std::thread last([&] {
    PlanReply reply;
    EXPECT_FALSE(Plan(SmallSpec("b"), &reply).ok());
  });
  EXPECT_TRUE(Eventually([&] { return begun.load(); }));
  server_.reset();
  EXPECT_TRUE(given_up);
  last.join();
}

TEST_F(PlanningTest, SubmitStartsAtOnceWhatItPlanned) {
  std::atomic<int> made = 0;
  options_.plans.maker = [&](const PlanQuestion& question, strategies::Budget* budget) {
    ++made;
    return spec::MakePlan(question.spec, question.on, budget);
  };
  Start();
  FakeWorker worker(address(), {});
  ASSERT_TRUE(worker.WaitForWelcome());
  ASSERT_TRUE(Eventually([&] {
    PlanReply plan;
    return Plan(SmallSpec("a"), &plan).ok() && plan.ranks_size() == 1 && plan.ranks(0).node() == "n1";
  }));
  const int before = made;
  SubmitReply reply;
  ASSERT_TRUE(client_->Submit("a", SmallSpec("a"), &reply).ok());
  EXPECT_EQ(reply.job().state(), JOB_STATE_STARTING);
  EXPECT_EQ(reply.plan().ranks(0).node(), "n1");
  EXPECT_EQ(reply.plan().resolved().name(), "a");
  EXPECT_EQ(made, before) << "plan, submit and placement share one";
}

}  // namespace
}  // namespace muster::server
