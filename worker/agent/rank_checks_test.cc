#include "worker/agent/rank_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/failpoint.h"
#include "testing/wait.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kTokens[] = "job_paths.data.tokens";

class RankChecksTest : public testing::Test {
 protected:
  RankChecksTest() { Make({}); }
  ~RankChecksTest() override { failpoint::Arm("").IgnoreError(); }

  void Make(RankRules rules) {
    checks_ = std::make_unique<RankChecks>(std::move(rules), loop_.get(), [this] { ++answered_; });
  }
  // As a mount whose server is down.
  static void TokensDoNotAnswer() { ASSERT_TRUE(failpoint::Arm(absl::StrCat(kTokens, "=sleep:600000@*")).ok()); }
  static uint64_t Looks() { return failpoint::Passed()[kTokens]; }
  static RankId Id(const std::string& job, uint64_t generation = 1, uint32_t rank = 0) {
    return {JobId(job), generation, rank};
  }
  static Assignment With(const std::string& tokens) {
    Assignment assignment;
    assignment.mutable_spec()->mutable_train()->mutable_data()->set_tokens(tokens);
    return assignment;
  }
  absl::StatusCode Code(const RankId& rank, const Assignment& assignment) {
    const std::optional<RankChecks::Answer> answer = checks_->Ask(rank, assignment);
    return answer.has_value() ? answer->status().code() : absl::StatusCode::kUnavailable;
  }

  FakeClock clock_;
  const std::shared_ptr<EventLoop> loop_ = std::make_shared<EventLoop>(&clock_);
  int answered_ = 0;
  std::unique_ptr<RankChecks> checks_;
};

TEST_F(RankChecksTest, AnAnswerIsAnnouncedAndGivenToEachRank) {
  Make({.paths = {.data_roots = {"/nonexistent/root"}}});
  const Assignment bad = With("/tmp/elsewhere");
  // The first time it may come at once, or later.
  const auto refuses = [&](const RankId& rank) {
    return Eventually([&] {
      loop_->RunPending();
      return Code(rank, bad) == absl::StatusCode::kPermissionDenied;
    });
  };
  const auto announced = [&] {
    return Eventually([&, before = answered_] {
      loop_->RunPending();
      return answered_ > before;
    });
  };
  checks_->Ask(Id("a"), bad);
  ASSERT_TRUE(announced());
  ASSERT_TRUE(refuses(Id("a")));
  checks_->Ask(Id("a", 2), bad);
  ASSERT_TRUE(announced()) << "it is asked again: the roots may have changed";
  ASSERT_TRUE(refuses(Id("a", 2)));
  ASSERT_TRUE(Eventually([&] { return Code(Id("b"), With("")) == absl::StatusCode::kOk; }));
}

TEST_F(RankChecksTest, APathThatDoesNotAnswerTakesOneThread) {
  TokensDoNotAnswer();
  const Assignment assignment = With("/nfs/tokens");
  for (uint32_t rank = 0; rank < 8; ++rank) EXPECT_FALSE(checks_->Ask(Id("a", 1, rank), assignment).has_value());
  ASSERT_TRUE(Eventually([] { return Looks() == 1; }));
  clock_.Advance(absl::Seconds(9));
  EXPECT_FALSE(checks_->Ask(Id("a"), assignment).has_value());
  clock_.Advance(absl::Seconds(1));
  // Also of the next generation, which need not wait.
  for (const RankId& rank : {Id("a"), Id("a", 1, 1), Id("a", 2)}) {
    const std::optional<RankChecks::Answer> answer = checks_->Ask(rank, assignment);
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(answer->status().message()), HasSubstr("data.tokens: /nfs/tokens: no answer within 10s"));
  }
  EXPECT_EQ(Looks(), 1u);
  EXPECT_TRUE(Eventually([&] { return Code(Id("b"), With("")) == absl::StatusCode::kOk; })) << "of another job";
}

TEST_F(RankChecksTest, ThreadsAreBounded) {
  TokensDoNotAnswer();
  Make({.most_unanswered = 2});
  for (const char* job : {"a", "b"}) EXPECT_FALSE(checks_->Ask(Id(job), With(absl::StrCat("/nfs/", job))).has_value());
  EXPECT_EQ(Code(Id("c"), With("/nfs/c")), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(Eventually([] { return Looks() == 2; }));
  checks_->Keep([](const RankId& rank) { return rank.job.value() != "a"; });
  EXPECT_EQ(Code(Id("d"), With("/nfs/d")), absl::StatusCode::kResourceExhausted) << "its thread is still there";
}

}  // namespace
}  // namespace muster::agent
