// The loop without a transport: many threads, and links that only collect messages.
#include "coordinator/server/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "coordinator/spec/resolve.h"
#include "testing/temporary_folder.h"

namespace muster::server {
namespace {

JobSpec Spec(const std::string& name) {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name(name);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  spec.mutable_train()->mutable_data()->set_tokens("/data/train.bin");
  spec.mutable_train()->set_steps(10);
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

// Keeps the messages that it is sent.
class FakeLink final : public WorkerLink {
 public:
  void Send(CoordinatorMessage message) override {
    const MutexLock lock(mutex_);
    sent_.push_back(std::move(message));
  }
  void Close(const absl::Status& status) override {
    const MutexLock lock(mutex_);
    closed_ = status;
  }
  std::vector<CoordinatorMessage> sent() {
    const MutexLock lock(mutex_);
    return sent_;
  }
  std::optional<absl::Status> closed() {
    const MutexLock lock(mutex_);
    return closed_;
  }

 private:
  Mutex mutex_;
  std::vector<CoordinatorMessage> sent_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> closed_ ABSL_GUARDED_BY(mutex_);
};

class LoopTest : public ::testing::Test {
 protected:
  LoopTest() {
    options_.state_dir = folder_.path();
    Start();
  }
  void Start() {
    auto loop = Loop::Start(options_, &clock_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }
  // Runs on the loop's thread after a commit.
  template <typename Result>
  Result Ask(const std::function<Result(Turn&)>& question) {
    std::promise<Result> answer;
    loop_->Post([&](Turn& turn) { turn.AfterCommit([&] { answer.set_value(question(turn)); }); });
    return answer.get_future().get();
  }
  size_t Jobs() {
    return Ask<size_t>([](Turn& turn) { return turn.core().ListJobs(true).size(); });
  }
  std::vector<WatchItem> ReadAll(const WatchRequest& request, int* empty_pages = nullptr) {
    std::promise<absl::StatusOr<std::shared_ptr<Watch>>> opened;
    loop_->Post([&](Turn& turn) {
      turn.AfterCommit([&] { opened.set_value(turn.watches().Open(turn.core(), request, JobId())); });
    });
    const absl::StatusOr<std::shared_ptr<Watch>> watch = opened.get_future().get();
    EXPECT_TRUE(watch.ok()) << watch.status();
    std::vector<WatchItem> items;
    while (true) {
      std::promise<WatchPage> next;
      loop_->Post([&](Turn& turn) {
        turn.AfterCommit(
            [&] { turn.watches().Next(*watch, [&](WatchPage page) { next.set_value(std::move(page)); }); });
      });
      WatchPage page = next.get_future().get();
      items.insert(items.end(), page.items.begin(), page.items.end());
      if (empty_pages != nullptr && page.items.empty() && !page.end) ++*empty_pages;
      if (page.end) return items;
    }
  }

  RealClock clock_;
  const TemporaryFolder folder_;
  LoopOptions options_;
  std::unique_ptr<Loop> loop_;
};

TEST_F(LoopTest, ManyThreadsAreAnsweredOnceAndFindEverythingAfterARestart) {
  constexpr int kThreads = 4, kJobs = 25;
  std::atomic<int> answers = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kJobs; ++i) {
        const std::string name = absl::StrCat("j", t, "-", i);
        loop_->Post([&answers, name](Turn& turn) {
          const core::Outcome& outcome = turn.Handle(core::SubmitJob{name, "me", Spec(name), "aaaa"});
          turn.AfterCommit([&answers, &outcome] { answers += outcome.status.ok(); });
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Jobs(), size_t{kThreads * kJobs});
  EXPECT_EQ(answers, kThreads * kJobs);
  const std::vector<WatchItem> before = ReadAll({});
  loop_->Stop();
  loop_.reset();
  Start();
  EXPECT_EQ(Jobs(), size_t{kThreads * kJobs});
  const std::vector<WatchItem> after = ReadAll({});
  ASSERT_EQ(before.size(), after.size());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].cursor(), after[i].cursor());
}

// One page of the history a turn, as readers who go forward.
TEST_F(LoopTest, ALongTailIsFoundOverSeveralTurns) {
  constexpr int kPoints = 3000;
  ASSERT_TRUE(Ask<bool>([](Turn& turn) {
    for (int i = 1; i <= kPoints; ++i) {
      MetricPoint point;
      point.set_step(i);
      turn.ledger().Stage(JobId("a"), point);
    }
    return turn.ledger().Flush().ok();
  }));
  WatchRequest request;
  request.set_metrics(true);
  request.set_tail(2500);
  int empty_pages = 0;
  const std::vector<WatchItem> items = ReadAll(request, &empty_pages);
  ASSERT_EQ(items.size(), 2500u);
  EXPECT_EQ(items.front().metrics().step(), 501u);
  EXPECT_EQ(items.back().metrics().step(), 3000u);
  EXPECT_GE(empty_pages, 2500 / 256);
}

TEST_F(LoopTest, StopDoesWhatWasPostedAndStoresWhatIsStaged) {
  std::atomic<int> done = 0;
  for (int i = 0; i < 1000; ++i) {
    loop_->Post([&done, i](Turn& turn) {
      if (i == 0) turn.Handle(core::SubmitJob{"r", "me", Spec("a"), "aaaa"});
      MetricPoint point;
      point.set_step(i + 1);
      turn.ledger().Stage(JobId("a-aaaa"), point);
      turn.AfterCommit([&done] { ++done; });
    });
  }
  loop_->Stop();
  EXPECT_EQ(done, 1000);
  loop_.reset();
  Start();
  WatchRequest metrics;
  metrics.set_metrics(true);
  EXPECT_EQ(ReadAll(metrics).size(), 1000u);
}

TEST_F(LoopTest, WorkersAreServedByRealEventsAndDrainedSilently) {
  auto link = std::make_shared<FakeLink>();
  WorkerMessage hello;
  hello.mutable_hello()->mutable_node()->set_id("n1");
  hello.mutable_hello()->mutable_node()->set_incarnation("i1");
  hello.mutable_hello()->mutable_node()->set_boot_id("b1");
  hello.mutable_hello()->mutable_node()->add_slots()->set_device(DEVICE_CPU);
  loop_->Post([=](Turn& turn) { turn.workers().Receive(turn, link, hello); });
  loop_->Post([](Turn& turn) { turn.Handle(core::SubmitJob{"r", "me", Spec("a"), "aaaa"}); });
  EXPECT_EQ(Jobs(), 1u);
  // The rank starts when its plan is made.
  const auto wanted = [&] {
    const std::vector<CoordinatorMessage> sent = link->sent();
    return sent.empty() ? 0 : sent.back().desired().ranks_size();
  };
  for (const absl::Time end = absl::Now() + absl::Minutes(1); wanted() == 0 && absl::Now() < end;) Jobs();
  const std::vector<CoordinatorMessage> sent = link->sent();
  ASSERT_GE(sent.size(), 2u);
  EXPECT_TRUE(sent[0].has_welcome());
  EXPECT_EQ(sent[0].term(), 1u);
  ASSERT_TRUE(sent.back().has_desired());
  EXPECT_EQ(sent.back().desired().ranks_size(), 1);
  loop_->Drain();
  Jobs();
  ASSERT_TRUE(link->closed().has_value());
  EXPECT_EQ(link->closed()->code(), absl::StatusCode::kUnavailable);
  loop_->Post([=](Turn& turn) { turn.workers().Gone(turn, link.get()); });
  const NodeState state = Ask<NodeState>([](Turn& turn) { return turn.core().GetNode(NodeId("n1"))->state(); });
  EXPECT_EQ(state, NODE_STATE_LIVE);  // the coordinator closed the stream
}

// The generations of the first restore may still be known to a worker when the second one begins.
TEST_F(LoopTest, ABackupThatIsRestoredAgainSkipsOtherNumbers) {
  std::set<std::string> messages;
  for (int restore = 0; restore < 3; ++restore) {
    const TemporaryFolder copy;
    ASSERT_TRUE(Ask<bool>([&](Turn& turn) { return turn.ledger().Backup(copy.path() + "/state.db").ok(); }));
    LoopOptions options;
    options.state_dir = copy.path();
    std::unique_ptr<Loop> restored = *Loop::Start(options, &clock_);
    restored->Post([](Turn&) {});  // one that is stopped before its first turn does not read the mark of the backup
    restored.reset();
    const auto ledger = *server::Ledger::Open(copy.path(), {});
    const StreamPage page = *ledger->Read({}, 0);
    for (const StreamItem& item : page.items) {
      messages.insert(std::get<StateEvent>(item.body).message());
    }
  }
  EXPECT_GE(messages.size(), 2u) << "the same number comes three times once in 10^12 runs";
}

TEST_F(LoopTest, HistoryOfAJobThatStateDoesNotKnowIsForgottenAtTheStart) {
  loop_->Post([](Turn& turn) {
    MetricPoint point;
    point.set_step(1);
    turn.ledger().Stage(JobId("stranger"), point);
  });
  loop_->Stop();
  loop_.reset();
  Start();
  EXPECT_TRUE(ReadAll({}).empty());
}

}  // namespace
}  // namespace muster::server
