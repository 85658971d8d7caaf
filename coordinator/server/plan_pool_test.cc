#include "coordinator/server/plan_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>

#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

PlanQuestion Question(uint32_t sequences) {
  PlanQuestion question;
  question.spec.mutable_train()->mutable_batch()->set_sequences(sequences);
  return question;
}

// Plans that are made when the test says so. The number of sequences is what each costs.
class PlanPoolTest : public ::testing::Test {
 protected:
  PlanPoolTest() {
    options_.threads = 1;
    options_.short_work = 10;
    options_.limits.work = 1000;
    options_.maker = [this](const PlanQuestion& question, strategies::Budget* budget) {
      return Make(question, budget);
    };
  }

  absl::StatusOr<spec::MadePlan> Make(const PlanQuestion& question, strategies::Budget* budget) {
    const uint32_t cost = question.spec.train().batch().sequences();
    const auto what = [] { return std::string("it is large; make it small"); };
    {
      const MutexLock lock(mutex_);
      begun_.push_back(cost), again_.push_back(budget->again());
      // What comes to its limit in the short lane gets stuck in the long one.
      if (cost == stuck_ && cost <= budget->left()) {
        // Until it is let go or given up.
        while (stuck_ == cost && budget->Spend(0, what).ok()) released_.wait_for(mutex_, std::chrono::milliseconds(1));
      }
    }
    if (absl::Status status = budget->Spend(cost, what); !status.ok()) return status;
    spec::MadePlan plan;
    plan.planned = std::make_shared<const core::Planned>();
    plan.reply.set_strategy(absl::StrCat(cost));
    return plan;
  }
  PlanPool::Done Noting(const std::string& who) {
    return [this, who](const PlanPool::Answer& answer) {
      const MutexLock lock(mutex_);
      answers_.push_back(
          absl::StrCat(who, ": ", answer.ok() ? (*answer)->reply.strategy() : answer.status().ToString()));
    };
  }
  bool Wait(const std::function<bool()>& condition) {
    return Eventually([&] {
      const MutexLock lock(mutex_);
      return condition();
    });
  }
  bool WaitForAnswers(size_t count) {
    return Wait([this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return answers_.size() >= count; });
  }
  bool WaitForBegin(uint32_t cost) {
    return Wait([this, cost]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return std::count(begun_.begin(), begun_.end(), cost) > 0;
    });
  }
  void Release() {
    const MutexLock lock(mutex_);
    stuck_ = 0;
    released_.notify_all();
  }
  std::vector<std::string> answers() {
    const MutexLock lock(mutex_);
    return answers_;
  }
  void StickAt(uint32_t cost) {
    const MutexLock lock(mutex_);
    stuck_ = cost;
  }
  size_t Begun(uint32_t cost) {
    const MutexLock lock(mutex_);
    return static_cast<size_t>(std::count(begun_.begin(), begun_.end(), cost));
  }

  PlanPool::Options options_;
  Mutex mutex_;
  std::condition_variable_any released_;
  uint32_t stuck_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint32_t> begun_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> again_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> answers_ ABSL_GUARDED_BY(mutex_);
};

const auto kAna = PlanPool::User("ana"), kBen = PlanPool::User("ben");

TEST_F(PlanPoolTest, OneQuestionIsAnsweredOnceForAllWhoAskIt) {
  PlanPool pool(options_);
  StickAt(7);
  pool.Ask(Question(7), kAna, Noting("a"));
  ASSERT_TRUE(WaitForBegin(7));
  pool.Ask(Question(7), PlanPool::Core(), Noting("b"));
  Release();
  ASSERT_TRUE(WaitForAnswers(2));
  pool.Ask(Question(7), kAna, Noting("c"));
  ASSERT_TRUE(WaitForAnswers(3));
  EXPECT_EQ(answers(), (std::vector<std::string>{"a: 7", "b: 7", "c: 7"}));
  EXPECT_EQ(Begun(7), 1u);
  EXPECT_EQ(pool.stats().joined, 1u);
  EXPECT_EQ(pool.stats().kept, 1u);
}

TEST_F(PlanPoolTest, ASmallPlanDoesNotWaitForALargeOne) {
  PlanPool pool(options_);
  StickAt(200);
  // It gets stuck behind its first spending, in the long lane.
  pool.Ask(Question(200), kAna, Noting("large"));
  ASSERT_TRUE(Wait(
      [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return std::count(begun_.begin(), begun_.end(), 200u) == 2; }));
  pool.Ask(Question(3), kAna, Noting("small"));
  ASSERT_TRUE(WaitForAnswers(1));
  EXPECT_EQ(answers(), std::vector<std::string>{"small: 3"});
  Release();
  ASSERT_TRUE(WaitForAnswers(2));
  EXPECT_EQ(answers().back(), "large: 200");
}

TEST_F(PlanPoolTest, BeyondTheBudgetIsAnErrorThatIsKept) {
  PlanPool pool(options_);
  pool.Ask(Question(1001), kAna, Noting("a"));
  ASSERT_TRUE(WaitForAnswers(1));
  EXPECT_EQ(answers()[0], "a: RESOURCE_EXHAUSTED: planning stops at its limit of work: it is large; make it small");
  pool.Ask(Question(1001), kAna, Noting("b"));
  ASSERT_TRUE(WaitForAnswers(2));
  EXPECT_EQ(Begun(1001), 2u) << "in each lane once";
  const MutexLock lock(mutex_);
  EXPECT_EQ(again_, (std::vector<bool>{true, false})) << "another lane comes after the short one";
  EXPECT_EQ(pool.stats().refused, 1u);
}

TEST_F(PlanPoolTest, NoOneWorksForWhoHasGone) {
  PlanPool pool(options_);
  StickAt(5);
  const uint64_t running = pool.Ask(Question(5), kAna, Noting("running"));
  ASSERT_TRUE(WaitForBegin(5));
  const uint64_t queued = pool.Ask(Question(6), kAna, Noting("queued"));
  pool.Cancel(queued);
  pool.Cancel(running);  // it stops at its next check, which lets the next one begin
  pool.Ask(Question(8), kAna, Noting("next"));
  ASSERT_TRUE(WaitForAnswers(1));
  EXPECT_EQ(answers(), std::vector<std::string>{"next: 8"});
  EXPECT_EQ(Begun(6), 0u);
  EXPECT_EQ(pool.stats().given_up, 2u);
  EXPECT_EQ(pool.stats().waiting, 0u);
  pool.Cancel(running);
  pool.Cancel(12345);
}

TEST_F(PlanPoolTest, WhoStaysKeepsAPlanGoing) {
  PlanPool pool(options_);
  StickAt(5);
  const uint64_t gone = pool.Ask(Question(5), kAna, Noting("gone"));
  pool.Ask(Question(5), kAna, Noting("stays"));
  ASSERT_TRUE(WaitForBegin(5));
  pool.Cancel(gone);
  Release();
  ASSERT_TRUE(WaitForAnswers(1));
  EXPECT_EQ(answers(), std::vector<std::string>{"stays: 5"});
}

TEST_F(PlanPoolTest, TheCoreGoesFirst) {
  PlanPool pool(options_);
  StickAt(5);
  pool.Ask(Question(5), kAna, Noting("running"));
  ASSERT_TRUE(WaitForBegin(5));
  pool.Ask(Question(1), kAna, Noting("a"));
  pool.Ask(Question(2), kAna, Noting("b"));
  pool.Ask(Question(4), PlanPool::Core(), Noting("core"));
  pool.Ask(Question(2), PlanPool::Core(), Noting("core too"));
  Release();
  ASSERT_TRUE(WaitForAnswers(5));
  EXPECT_EQ(answers(), (std::vector<std::string>{"running: 5", "core: 4", "b: 2", "core too: 2", "a: 1"}));
}

TEST_F(PlanPoolTest, UsersTakeTurns) {
  PlanPool pool(options_);
  StickAt(5);
  pool.Ask(Question(5), kAna, Noting("running"));
  ASSERT_TRUE(WaitForBegin(5));
  for (uint32_t cost = 1; cost <= 3; ++cost) pool.Ask(Question(cost), kAna, Noting("ana"));
  pool.Ask(Question(6), kBen, Noting("ben"));
  pool.Ask(Question(7), kBen, Noting("ben"));
  Release();
  ASSERT_TRUE(WaitForAnswers(6));
  EXPECT_EQ(answers(), (std::vector<std::string>{"running: 5", "ana: 1", "ben: 6", "ana: 2", "ben: 7", "ana: 3"}));
}

TEST_F(PlanPoolTest, OneUserLeavesPlacesToOthers) {
  options_.most_callers = 6;
  PlanPool pool(options_);
  StickAt(5);
  pool.Ask(Question(5), kAna, Noting("running"));
  ASSERT_TRUE(WaitForBegin(5));
  pool.Ask(Question(1), kAna, Noting("ana"));
  const uint64_t last = pool.Ask(Question(2), kAna, Noting("gone"));
  pool.Ask(Question(3), kAna, Noting("ana"));  // refused: 3 hers, 3 free
  pool.Ask(Question(3), kBen, Noting("ben"));
  pool.Ask(Question(6), kBen, Noting("ben"));
  pool.Ask(Question(7), kBen, Noting("ben"));  // refused: 2 his, 1 free
  pool.Ask(Question(4), PlanPool::Core(), Noting("core"));
  pool.Cancel(last);
  pool.Ask(Question(7), kBen, Noting("ben"));  // refused: 2 his, 2 free
  pool.Ask(Question(8), PlanPool::User("eve"), Noting("eve"));
  const auto refused = [](const std::string& who) {
    return absl::StrCat(who, " are waiting for plans; try again in a few seconds");
  };
  EXPECT_EQ(answers(),
            (std::vector<std::string>{refused("ana: RESOURCE_EXHAUSTED: 3 calls of ana and 0 of other users"),
                                      refused("ben: RESOURCE_EXHAUSTED: 2 calls of ben and 3 of other users"),
                                      refused("ben: RESOURCE_EXHAUSTED: 2 calls of ben and 2 of other users")}));
  Release();
  ASSERT_TRUE(WaitForAnswers(9));
  EXPECT_EQ(pool.stats().waiting, 0u);
}

TEST_F(PlanPoolTest, StopsInTheMiddleOfAPlan) {
  PlanPool pool(options_);
  StickAt(5);
  pool.Ask(Question(5), kAna, Noting("running"));
  ASSERT_TRUE(WaitForBegin(5));
  pool.Ask(Question(6), kAna, Noting("queued"));
  pool.Stop();
  EXPECT_TRUE(answers().empty());
  pool.Ask(Question(7), kAna, Noting("late"));
  EXPECT_EQ(answers().size(), 1u);
}

TEST_F(PlanPoolTest, KeepsAnswersUpToItsBound) {
  options_.most_kept_bytes = 5000;
  PlanPool pool(options_);
  for (uint32_t cost = 1; cost <= 9; ++cost) {
    pool.Ask(Question(cost), kAna, Noting("a"));
    ASSERT_TRUE(WaitForAnswers(cost));
  }
  pool.Ask(Question(9), kAna, Noting("a"));
  pool.Ask(Question(1), kAna, Noting("a"));
  ASSERT_TRUE(WaitForAnswers(11));
  EXPECT_EQ(Begun(9), 1u);
  EXPECT_EQ(Begun(1), 2u) << "forgotten";
}

}  // namespace
}  // namespace muster::server
