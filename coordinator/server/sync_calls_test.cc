// Two replicas of a run in a shell without threads, on a clock that the test moves.
#include "coordinator/server/sync_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/clock.h"
#include "coordinator/core/job_plan.h"
#include "coordinator/server/ledger.h"
#include "coordinator/server/shell.h"
#include "coordinator/spec/resolve.h"
#include "testing/temporary_folder.h"

namespace muster::server {
namespace {

class PlansOnRequest final : public CorePlans {
 public:
  void Request(const core::RequestPlan& request) override { requests.push_back(request); }
  void Cancel(const std::string&) override {}
  std::vector<core::RequestPlan> requests;
};

class SyncCallsTest : public ::testing::Test {
 protected:
  explicit SyncCallsTest(uint32_t replicas = 2, uint32_t fragments = 1) {
    shell_ = Shell::Start({}, &clock_, &plans_, Ledger::Open(folder_.path(), {}).value()).value();
    core::NodeConnected hello;
    hello.node.set_id("n0"), hello.node.set_hostname("n0.host"), hello.node.set_boot_id("boot");
    hello.node.set_incarnation("i1");
    for (uint32_t i = 0; i < replicas; ++i) {
      Slot& slot = *hello.node.add_slots();
      slot.set_index(i);
      slot.set_device(DEVICE_CPU);
    }
    Do(hello);
    Observe({});
    JobSpec spec;
    spec.set_name("far");
    Train& train = *spec.mutable_train();
    train.mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
    train.mutable_data()->set_tokens("/t.bin");
    train.set_steps(100);
    train.mutable_sync()->set_replicas(replicas);
    train.mutable_sync()->set_fragments(fragments);
    train.mutable_sync()->set_patience_seconds(30);
    EXPECT_TRUE(spec::Resolve({}, spec).empty());
    Do(core::SubmitJob{.request_id = "r", .owner = "me", .spec = spec, .suffix = "x7f2", .secret = "s3"});
    while (!plans_.requests.empty()) {
      const core::RequestPlan request = plans_.requests.back();
      plans_.requests.pop_back();
      auto plan = core::PlanJob(request.spec, request.slots, core::HardwareFor(request.slots));
      EXPECT_TRUE(plan.ok()) << plan.status();
      Do(core::PlanReady{request.key, std::make_shared<const core::Planned>(core::PlannedOf(*plan))});
    }
    std::vector<ObservedRank> ranks(replicas);
    for (uint32_t replica = 0; replica < replicas; ++replica) {
      ranks[replica].mutable_key()->set_job(RankOf(replica).job.value());
      ranks[replica].mutable_key()->set_generation(RankOf(replica).generation);
      ranks[replica].set_state(RANK_STATE_RUNNING);
    }
    Observe(ranks);
  }

  void Do(const core::Event& event) {
    shell_->DoTurn({[&](Turn& turn) { EXPECT_TRUE(turn.Handle(event).status.ok()) << core::NameOf(event); }});
  }
  void Observe(const std::vector<ObservedRank>& ranks) {
    core::NodeObserved event{NodeId("n0"), Incarnation("i1"), {}};
    event.observed.set_full(true);
    for (const ObservedRank& rank : ranks) *event.observed.add_ranks() = rank;
    Do(event);
  }
  static RankId RankOf(uint32_t replica) { return {JobId(absl::StrCat("far-x7f2-", replica)), 1, 0}; }

  // A call of a replica that offers its part. Its reply is added to `replies_`.
  uint64_t Ask(uint32_t replica, const std::vector<uint32_t>& holds, absl::Duration wait) {
    uint64_t number = 0;
    shell_->DoTurn({[&](Turn& turn) { number = Begin(turn, replica, holds, wait); }});
    return number;
  }
  uint64_t Begin(Turn& turn, uint32_t replica, const std::vector<uint32_t>& holds, absl::Duration wait,
                 uint32_t fragment = 0) {
    core::SyncRank asked{RankOf(replica), {}};
    asked.request.set_fragment(fragment);
    asked.request.set_offers(true);
    asked.request.set_address(absl::StrCat("r", replica));
    for (const uint32_t of : holds) asked.request.add_holds(of);
    return turn.sync_calls().Begin(
        turn, asked, turn.now().steady + wait,
        [this, replica](absl::StatusOr<SyncReply> reply) { replies_.push_back(Show(replica, reply)); });
  }
  static std::string Show(uint32_t replica, const absl::StatusOr<SyncReply>& reply) {
    if (!reply.ok()) return absl::StrCat(replica, ": ", absl::StatusCodeToString(reply.status().code()));
    std::vector<uint32_t> peers;
    for (const SyncPeer& peer : reply->peers()) peers.push_back(peer.replica());
    return absl::StrCat(replica, ": ", SyncReply::Decision_Name(reply->decision()), " members ",
                        absl::StrJoin(reply->members(), ","), " peers ", absl::StrJoin(peers, ","));
  }
  // What was answered since the last call of this.
  std::string Replies() { return absl::StrJoin(std::exchange(replies_, {}), "; "); }
  // The turns that are due by now.
  void Settle() {
    for (int turns = 0; shell_->NextDeadline() <= clock_.Read().steady && turns < 10; ++turns) shell_->DoTurn({});
  }

  FakeClock clock_;
  const TemporaryFolder folder_;
  PlansOnRequest plans_;
  std::vector<std::string> replies_;
  std::unique_ptr<Shell> shell_;
};

constexpr absl::Duration kAnHour = absl::Hours(1);

TEST_F(SyncCallsTest, WaitsEndOnceThereIsSomethingToDo) {
  Ask(0, {0}, kAnHour);
  Settle();
  EXPECT_EQ(Replies(), "") << "it waits for the other one";
  Ask(1, {1}, kAnHour);
  Settle();
  EXPECT_EQ(Replies(), "1: WAIT members  peers 0,1; 0: WAIT members  peers 0,1");
  Ask(0, {0, 1}, kAnHour);
  Settle();
  EXPECT_EQ(Replies(), "");
  Ask(1, {0, 1}, kAnHour);
  Settle();
  EXPECT_EQ(Replies(), "1: APPLY members 0,1 peers ; 0: APPLY members 0,1 peers ");
}

TEST_F(SyncCallsTest, AWaitEndsAtItsDeadlineAndWithoutOneAtOnce) {
  Ask(0, {0}, absl::ZeroDuration());
  EXPECT_EQ(Replies(), "0: WAIT members  peers 0");
  Ask(0, {0}, absl::Seconds(5));
  clock_.Advance(absl::Seconds(5) - absl::Nanoseconds(1));
  Settle();
  EXPECT_EQ(Replies(), "");
  clock_.Advance(absl::Nanoseconds(1));
  Settle();
  EXPECT_EQ(Replies(), "0: WAIT members  peers 0");
}

TEST_F(SyncCallsTest, AReplicaThatDoesNotComeIsLeftOutThoughNoOneAsks) {
  Ask(0, {0}, kAnHour);
  clock_.Advance(absl::Seconds(30) - absl::Nanoseconds(1));
  Settle();
  EXPECT_EQ(Replies(), "");
  clock_.Advance(absl::Nanoseconds(1));
  Settle();
  EXPECT_EQ(Replies(), "0: APPLY members 0 peers ");
}

TEST_F(SyncCallsTest, AReplicaThatStopsIsNotWaitedFor) {
  Ask(0, {0}, kAnHour);
  Ask(1, {1}, kAnHour);
  Settle();
  Replies();
  Ask(0, {0}, absl::ZeroDuration());
  Ask(1, {0, 1}, kAnHour);
  Settle();
  EXPECT_EQ(Replies(), "0: WAIT members  peers 0,1");
  Do(core::PauseJob{RankOf(1).job});
  Settle();
  EXPECT_EQ(Replies(), "1: SKIP members  peers ");
  Ask(0, {0}, kAnHour);
  EXPECT_EQ(Replies(), "0: APPLY members 0 peers ");
}

TEST_F(SyncCallsTest, ANewerCallOfTheRankOrItsCallerEndsAnOlderOne) {
  Ask(0, {0}, kAnHour);
  const uint64_t newer = Ask(0, {0}, kAnHour);
  EXPECT_EQ(Replies(), "0: CANCELLED");
  shell_->DoTurn({[&](Turn& turn) { turn.AfterCommit([&] { turn.sync_calls().Cancel(newer); }); }});
  EXPECT_EQ(Replies(), "0: CANCELLED");
  shell_->DoTurn({[&](Turn& turn) { turn.AfterCommit([&] { turn.sync_calls().Cancel(newer); }); }});
  Ask(0, {0}, kAnHour);
  Ask(1, {1, 0}, kAnHour);
  shell_->DoTurn({[&](Turn& turn) {
    turn.AfterCommit([&] { turn.sync_calls().EndAll(absl::UnavailableError("shutting down")); });
  }});
  Replies();
  Settle();
  EXPECT_EQ(Replies(), "") << "each is answered once";
}

class ManySyncCallsTest : public SyncCallsTest {
 protected:
  ManySyncCallsTest() : SyncCallsTest(/*replicas=*/8, /*fragments=*/40) {}
};

// The last replica does not come, and the calls of the other 7 for 40 fragments reach their deadline at the same time.
TEST_F(ManySyncCallsTest, AtMost256AreAskedAgainInATurn) {
  std::vector<uint32_t> all(8);
  std::iota(all.begin(), all.end(), 0);
  shell_->DoTurn({[&](Turn& turn) {
    for (uint32_t fragment = 0; fragment < 40; ++fragment) {
      for (uint32_t replica = 0; replica < 7; ++replica) Begin(turn, replica, all, absl::Seconds(20), fragment);
    }
  }});
  Settle();
  ASSERT_EQ(replies_.size(), 0u) << replies_.front();
  clock_.Advance(absl::Seconds(20));
  shell_->DoTurn({});
  EXPECT_EQ(replies_.size(), 256u);
  EXPECT_LE(shell_->NextDeadline(), clock_.Read().steady) << "the next turn does not wait";
  shell_->DoTurn({});
  EXPECT_EQ(replies_.size(), 280u);
}

TEST_F(SyncCallsTest, AnErrorOfTheCoreEndsTheCall) {
  core::SyncRank asked{RankOf(0), {}};
  asked.rank.generation = 2;
  shell_->DoTurn({[&](Turn& turn) {
    turn.sync_calls().Begin(turn, asked, turn.now().steady + kAnHour,
                            [this](absl::StatusOr<SyncReply> reply) { replies_.push_back(Show(0, reply)); });
  }});
  EXPECT_EQ(Replies(), "0: FAILED_PRECONDITION");
}

}  // namespace
}  // namespace muster::server
