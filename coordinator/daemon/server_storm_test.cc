// Like storm_test, with the transport: clients and workers over gRPC while the server shuts down. Accepted jobs are
// there when it serves again, and no call hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/daemon/server_fixture_test.h"
#include "testing/fake_worker.h"
#include "testing/memory_folder.h"
#include "testing/wait.h"

namespace muster::server {
namespace {

class ServerStorm : public ServerFixture {
 protected:
  ServerStorm() { options_.state_dir = memory_.path() + "/state"; }

  // Until the server is gone: every call ends with a reply or an error.
  void SubmitAndCancel(int thread) {
    Client client(address_);
    for (int i = 0; !done_; ++i) {
      SubmitReply reply;
      const std::string request = absl::StrCat(round_, "-", thread, "-", i);
      if (!client.Submit(request, SmallSpec("storm"), &reply).ok()) continue;
      const std::string job = reply.job().id();
      {
        absl::MutexLock lock(&mutex_);
        accepted_.insert(job);
      }
      CancelRequest cancel;
      cancel.set_job(job);
      CancelReply cancelled;
      if (i % 2 == 0) (void)client.jobs().Cancel(client.Context().get(), cancel, &cancelled);
      PauseRequest pause;
      pause.set_job(job);
      PauseReply paused;
      if (i % 3 == 0) (void)client.jobs().Pause(client.Context().get(), pause, &paused);
    }
  }
  void WatchAll() {
    Client client(address_);
    while (!done_) {
      std::vector<WatchItem> items;
      WatchRequest request;
      request.set_follow(true);
      (void)client.Watch(request, &items, [](const auto& all) { return all.size() > 100; });
    }
  }
  void Work(int thread) {
    for (int life = 0; !done_; ++life) {
      FakeWorker worker(address_, {.node = absl::StrCat("n", thread), .incarnation = absl::StrCat(round_, "-", life)});
      if (life % 2 == 0) worker.SendHeartbeat(1);
    }
  }

  const MemoryFolder memory_;
  std::string address_;
  int round_ = 0;
  std::atomic<bool> done_ = false;
  absl::Mutex mutex_;
  std::set<std::string> accepted_;
};

TEST_F(ServerStorm, ShutsDownInTheMidstOfEverything) {
  for (round_ = 0; round_ < 3; ++round_) {
    Start();
    address_ = address();
    done_ = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([this, i] { SubmitAndCancel(i); });
      threads.emplace_back([this] { WatchAll(); });
      threads.emplace_back([this, i] { Work(i); });
    }
    EXPECT_TRUE(Eventually(
        [&] {
          absl::MutexLock lock(&mutex_);
          return accepted_.size() >= 20u * static_cast<unsigned>(round_ + 1);
        },
        absl::Seconds(60)));
    const absl::Time begin = absl::Now();
    server_->Shutdown();
    EXPECT_LT(absl::Now() - begin, absl::Seconds(15));
    done_ = true;
    for (std::thread& thread : threads) thread.join();
    client_.reset();
    server_.reset();
  }
  Start();
  for (const std::string& job : accepted_) EXPECT_NE(client_->StateOf(job), JOB_STATE_UNSPECIFIED) << job;
}

}  // namespace
}  // namespace muster::server
