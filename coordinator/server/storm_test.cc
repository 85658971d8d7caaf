// Everything at once: submissions, cancellations, pauses, deletions, watches, workers that come and go, rendezvous, and
// a shutdown in between. Without a transport, so that the thread sanitizer sees every access and its ordering.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/mutex.h"
#include "common/version.h"
#include "coordinator/server/loop.h"
#include "coordinator/spec/resolve.h"
#include "testing/memory_folder.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

constexpr int kRounds = 3;
constexpr auto kStorm = std::chrono::milliseconds(700);

JobSpec Spec() {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name("storm");
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  spec.mutable_train()->mutable_data()->set_tokens("/data/train.bin");
  spec.mutable_train()->set_steps(10);
  EXPECT_TRUE(spec::Resolve({}, spec).empty());
  return spec;
}

// Keeps the newest desired state.
class Link final : public WorkerLink {
 public:
  void Send(CoordinatorMessage message) override {
    const MutexLock lock(mutex_);
    if (message.has_desired()) desired_ = message.desired();
  }
  void Close(const absl::Status&) override { closed_ = true; }
  Desired desired() {
    const MutexLock lock(mutex_);
    return desired_;
  }
  bool closed() const { return closed_; }

 private:
  Mutex mutex_;
  Desired desired_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> closed_ = false;
};

class Storm {
 public:
  Storm(Loop* loop, uint64_t seed) : loop_(loop), seed_(seed) {
    for (int i = 0; i < 2; ++i) {
      threads_.emplace_back([this, i] { SubmitAndEnd(i); });
      threads_.emplace_back([this, i] { Watch(); });
      threads_.emplace_back([this, i] { Work(i); });
    }
  }
  // Replies that were expected and received; equal once the loop has stopped.
  void Join() {
    done_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  int asked() const { return asked_; }
  int answered() const { return answered_; }

 private:
  template <typename Event>
  void Handle(const Event& event) {
    ++asked_;
    loop_->Post([this, event](Turn& turn) {
      turn.Handle(event);
      turn.AfterCommit([this] { ++answered_; });
    });
  }

  // Ids of jobs, some of which exist: a call that comes too early or too late must do no harm.
  void SubmitAndEnd(int thread) {
    std::mt19937 random(static_cast<unsigned>(seed_ * 10 + static_cast<unsigned>(thread)));
    const JobSpec spec = Spec();
    for (int number = 0; !done_; ++number) {
      const std::string request = absl::StrCat("r", seed_, "-", thread, "-", number);
      const auto id = std::make_shared<std::promise<std::string>>();
      std::future<std::string> made = id->get_future();
      ++asked_;
      loop_->Post([this, request, spec, id, number](Turn& turn) {
        const core::Outcome& outcome =
            turn.Handle(core::SubmitJob{request, "me", spec, absl::StrCat("a", number % 1000)});
        turn.AfterCommit([this, id, &outcome, &turn] {
          ++answered_;
          const auto jobs = turn.core().ListJobs(/*ended_too=*/false);
          id->set_value(outcome.status.ok() && !jobs.empty() ? jobs.back().id() : "");
        });
      });
      const JobId job(made.get());
      if (job.empty()) continue;
      switch (random() % 4) {
        case 0:
          Handle(core::PauseJob{job});
          Handle(core::ResumeJob{job});
          break;
        case 1:
          Handle(core::DrainNode{NodeId("n0")});
          Handle(core::UndrainNode{NodeId("n0")});
          break;
        default:
          break;
      }
      Handle(core::CancelJob{job});
      Handle(core::DeleteJob{job});
    }
  }

  void Watch() {
    while (!done_) {
      std::promise<void> read;
      loop_->Post([&](Turn& turn) {
        turn.AfterCommit([&] {
          const auto watch = turn.watches().Open(turn.core(), WatchRequest(), JobId());
          if (!watch.ok()) return read.set_value();
          turn.watches().Next(*watch, [&](WatchPage) { read.set_value(); });
        });
      });
      read.get_future().get();
    }
  }

  // A node that connects, does what is desired, and disconnects, repeatedly.
  void Work(int number) {
    const std::string node = absl::StrCat("n", number);
    for (int life = 0; !done_; ++life) {
      const auto link = std::make_shared<Link>();
      WorkerMessage hello;
      hello.mutable_hello()->set_protocol(kProtocol);
      Node& self = *hello.mutable_hello()->mutable_node();
      self.set_id(node);
      self.set_boot_id(node);
      self.set_hostname(node);
      self.set_incarnation(absl::StrCat(seed_, "-", life));
      self.set_version(kVersion);
      Slot& slot = *self.add_slots();
      slot.set_device(DEVICE_CPU);
      slot.set_cores(1);
      slot.set_memory_bytes(uint64_t{8} << 30);
      Send(link, hello);
      WorkerMessage full;
      full.mutable_observed()->set_full(true);
      Send(link, full);
      for (int i = 0; i < 20 && !done_ && !link->closed(); ++i) {
        WorkerMessage report;
        const Desired desired = link->desired();
        for (const DesiredRank& rank : desired.ranks()) {
          ObservedRank& seen = *report.mutable_observed()->add_ranks();
          *seen.mutable_key() = rank.key();
          seen.set_state(rank.has_stop() ? RANK_STATE_EXITED : RANK_STATE_RUNNING);
          if (rank.has_stop()) seen.mutable_exit()->set_cause(RankExit::STOPPED);
        }
        if (!report.has_observed()) report.mutable_heartbeat()->set_number(static_cast<uint64_t>(i));
        Send(link, report);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));  // the pace of a worker
      }
      loop_->Post([link](Turn& turn) { turn.workers().Gone(turn, link.get()); });
    }
  }
  void Send(const std::shared_ptr<Link>& link, const WorkerMessage& message) {
    loop_->Post([link, message](Turn& turn) { turn.workers().Receive(turn, link, message); });
  }

  Loop* const loop_;
  const uint64_t seed_;
  std::atomic<bool> done_ = false;
  std::atomic<int> asked_ = 0, answered_ = 0;
  std::vector<std::thread> threads_;
};

TEST(Storm, EndsInOrderInTheMidstOfEverything) {
  const MemoryFolder folder;
  const RealClock clock;
  LoopOptions options;
  options.state_dir = folder.path();
  for (uint64_t round = 0; round < kRounds; ++round) {
    auto loop = Loop::Start(options, &clock);
    ASSERT_TRUE(loop.ok()) << loop.status();  // also after the earlier storms
    Storm storm(loop->get(), round);
    std::this_thread::sleep_for(kStorm);
    EXPECT_TRUE(Eventually([&] { return storm.answered() > 20; }));
    (*loop)->Drain();
    storm.Join();
    (*loop)->Stop();
    EXPECT_EQ(storm.answered(), storm.asked()) << "a caller would wait forever";
  }
}

}  // namespace
}  // namespace muster::server
