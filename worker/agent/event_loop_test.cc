// Other threads post to the event loop, cancel their requests, and continue while it ends. Also for the thread
// sanitizer.
#include "worker/agent/event_loop.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "common/clock.h"

namespace muster::agent {
namespace {

constexpr int kThreads = 4;

TEST(EventLoop, TimersRunInTheirOrderAndNotBefore) {
  const RealClock clock;
  const auto loop = std::make_shared<EventLoop>(&clock);
  const SteadyTime begin = clock.Read().steady;
  std::vector<int> ran;
  loop->PostAfter(absl::Milliseconds(30), [&] {
    ran.push_back(30);
    EXPECT_GE(clock.Read().steady - begin, absl::Milliseconds(30));
    loop->Stop();
  });
  loop->PostAfter(absl::Milliseconds(10), [&] { ran.push_back(10); });
  loop->Post([&] { ran.push_back(0); });
  loop->Run();
  EXPECT_EQ(ran, (std::vector<int>{0, 10, 30}));
}

TEST(EventLoop, AWatcherMayUnwatchWhatIsReadableToo) {
  const RealClock clock;
  const auto loop = std::make_shared<EventLoop>(&clock);
  const int first = eventfd(1, EFD_CLOEXEC), second = eventfd(1, EFD_CLOEXEC);
  int calls = 0;
  for (const int fd : {first, second}) {
    loop->Watch(fd, [&, fd] {
      ++calls;
      loop->Unwatch(fd == first ? second : first);
      loop->Stop();
    });
  }
  loop->Run();
  EXPECT_EQ(calls, 1);
  close(first);
  close(second);
}

// What the loop owns is changed by its callbacks alone, without a lock, as the agent's ranks and streams are.
class Owned {
 public:
  void Began(int request) { open_.insert(request); }
  void Cancelled(int request) { cancelled_ += open_.erase(request); }
  void Finished(int request) { finished_ += open_.erase(request); }
  size_t open() const { return open_.size(); }
  size_t ended() const { return cancelled_ + finished_; }

 private:
  std::set<int> open_;
  size_t cancelled_ = 0, finished_ = 0;
};

TEST(EventLoop, AStormOfPostsAndCancellationsWhileItStops) {
  for (int round = 0; round < 20; ++round) {
    const RealClock clock;
    const auto loop = std::make_shared<EventLoop>(&clock);
    Owned owned;
    std::atomic<int> posted = 0;
    int ran = 0;
    std::atomic<bool> stopped = false;
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread, kept = loop] {
        for (int i = 0; !stopped || i < 50; ++i) {
          const int request = i * kThreads + thread;
          posted += 2;
          kept->Post([&, request] { ++ran, owned.Began(request); });
          if (i % 3 == 0) kept->PostAfter(absl::Microseconds(i % 200), [&, request] { owned.Finished(request); });
          kept->Post([&, request] { ++ran, owned.Cancelled(request); });
        }
      });
    }
    loop->PostAfter(absl::Milliseconds(5), [&] { loop->Stop(); });
    loop->Run();
    stopped = true;
    // During shutdown, posts are still run until the other threads have ended.
    for (std::thread& thread : threads) {
      loop->RunPending();
      thread.join();
    }
    while (ran < posted) loop->RunPending();
    EXPECT_EQ(owned.open(), 0u);
    EXPECT_EQ(owned.ended(), static_cast<size_t>(posted / 2)) << "each once, in its thread's order";
  }
}

}  // namespace
}  // namespace muster::agent
