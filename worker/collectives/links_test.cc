#include "worker/collectives/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "absl/time/clock.h"
#include "worker/collectives/gloo_groups_test.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/steady.h"

namespace muster::collectives {
namespace {

// What lies between ranks: a message is there after the latency and the time that its bytes take on the link.
struct SimulatedLinks {
  struct One {
    double bytes_per_second = 1e9, latency_seconds = 0;
  };
  std::map<std::pair<int, int>, One> links;  // by (from, to)
  std::mutex mutex;
  std::condition_variable arrived;
  struct Sent {
    at::Tensor values;
    SteadyPoint at;
  };
  std::map<std::pair<int, int>, std::deque<Sent>> sent;
};

class ArrivedWork final : public Work {
 public:
  absl::Status Wait() override { return absl::OkStatus(); }
  bool done() const override { return true; }
};

class ReceivedWork final : public Work {
 public:
  ReceivedWork(SimulatedLinks& between, std::pair<int, int> way, at::Tensor values)
      : between_(between), way_(way), values_(std::move(values)) {}
  absl::Status Wait() override {
    std::unique_lock lock(between_.mutex);
    between_.arrived.wait(lock, [&] { return !between_.sent[way_].empty(); });
    const SimulatedLinks::Sent sent = between_.sent[way_].front();
    between_.sent[way_].pop_front();
    lock.unlock();
    std::this_thread::sleep_until(sent.at);  // the network
    EXPECT_EQ(sent.values.numel(), values_.numel());
    values_.copy_(sent.values);
    return absl::OkStatus();
  }
  bool done() const override { return false; }

 private:
  SimulatedLinks& between_;
  const std::pair<int, int> way_;
  at::Tensor values_;
};

class SimulatedGroup final : public Group {
 public:
  SimulatedGroup(SimulatedLinks& between, int rank, int size) : between_(between), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override {
    const SimulatedLinks::One& link = between_.links[{rank_, to}];
    const std::lock_guard lock(between_.mutex);
    const double seconds = link.latency_seconds + static_cast<double>(values.nbytes()) / link.bytes_per_second;
    between_.sent[{rank_, to}].push_back({values.clone(), After(absl::Seconds(seconds))});
    between_.arrived.notify_all();
    return std::make_unique<ArrivedWork>();
  }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override {
    return std::make_unique<ReceivedWork>(between_, std::pair(from, rank_), values);
  }
  std::unique_ptr<Work> AllReduce(at::Tensor) override { return nullptr; }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor>) override { return nullptr; }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor>) override { return nullptr; }
  std::unique_ptr<Work> Broadcast(at::Tensor, int) override { return nullptr; }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare>) override { return nullptr; }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare>) override { return nullptr; }
  absl::Status Barrier() override { return absl::OkStatus(); }
  absl::Status Health() override { return absl::OkStatus(); }

 private:
  SimulatedLinks& between_;
  const int rank_, size_;
};

struct MeasuredByAll {
  std::vector<std::vector<MeasuredLink>> links;  // by rank
  double seconds = 0;
};

MeasuredByAll MeasureAll(const std::vector<Group*>& groups, const std::vector<std::pair<int, int>>& pairs) {
  MeasuredByAll all{.links = std::vector<std::vector<MeasuredLink>>(groups.size())};
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < groups.size(); ++rank) {
    threads.emplace_back([&, rank] {
      auto measured = MeasureLinks(*groups[rank], pairs, absl::Milliseconds(800), c10::kCPU);
      ASSERT_TRUE(measured.ok()) << measured.status();
      all.links[rank] = *std::move(measured);
    });
  }
  for (std::thread& thread : threads) thread.join();
  all.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return all;
}

MeasuredByAll MeasureSimulated(SimulatedLinks& between, int size, const std::vector<std::pair<int, int>>& pairs) {
  std::vector<std::unique_ptr<SimulatedGroup>> owned;
  std::vector<Group*> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.push_back(owned.emplace_back(std::make_unique<SimulatedGroup>(between, rank, size)).get());
  }
  return MeasureAll(groups, pairs);
}

TEST(MeasureLinks, FindsBandwidthAndLatencyOfEachDirectionWithinASecond) {
  struct Case {
    SimulatedLinks::One there, back;
  };
  for (const Case& c : {Case{{125e3, 2e-3}, {125e3, 2e-3}},    // 1 Mbit/s
                        Case{{12.5e6, 1e-3}, {12.5e6, 1e-3}},  // 100 Mbit/s
                        Case{{12.5e6, 1e-3}, {1.25e6, 1e-3}},  // a tenth on the way back
                        Case{{125e6, 2e-4}, {125e6, 2e-4}},    // 1 Gbit/s
                        Case{{12.5e6, 15e-3}, {12.5e6, 15e-3}}}) {
    SimulatedLinks between;
    between.links = {{{0, 1}, c.there}, {{1, 0}, c.back}};
    const MeasuredByAll all = MeasureSimulated(between, 2, {{0, 1}});
    EXPECT_LT(all.seconds, 1.0);
    for (const int rank : {0, 1}) {
      const SimulatedLinks::One& link = rank == 0 ? c.there : c.back;
      ASSERT_EQ(all.links[rank].size(), 1u);
      EXPECT_EQ(all.links[rank][0].to, 1 - rank);
      EXPECT_NEAR(all.links[rank][0].bytes_per_second / link.bytes_per_second, 1, 0.2) << link.bytes_per_second;
      EXPECT_NEAR(all.links[rank][0].latency_seconds, link.latency_seconds, 0.2 * link.latency_seconds + 3e-4);
    }
  }
}

TEST(MeasureLinks, TakesLinksOfDifferentRanksAtTheSameTime) {
  SimulatedLinks between;
  const std::vector<std::pair<int, int>> pairs = {{0, 3}, {1, 2}, {0, 2}, {1, 3}, {0, 1}, {2, 3}};
  for (const auto& [a, b] : pairs) between.links[{a, b}] = between.links[{b, a}] = {1e6 * (1 + a + b), 1e-3};
  const MeasuredByAll all = MeasureSimulated(between, 5, pairs);
  EXPECT_LT(all.seconds, 1.2);
  EXPECT_TRUE(all.links[4].empty()) << "no pair names it";
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(all.links[rank].size(), 3u) << rank;
    for (const MeasuredLink& link : all.links[rank]) {
      EXPECT_NEAR(link.bytes_per_second / (1e6 * (1 + rank + link.to)), 1, 0.25) << rank << " to " << link.to;
    }
  }
}

TEST(MeasureLinks, WorksOverGloosSocketsAndDirectly) {
  for (const bool direct : {false, true}) {
    MemoryKeyValue rendezvous;
    const std::vector<std::unique_ptr<Group>> owned = JoinGloo(3, absl::Seconds(20), direct, rendezvous);
    const MeasuredByAll all = MeasureAll({owned[0].get(), owned[1].get(), owned[2].get()}, {{0, 1}, {0, 2}, {1, 2}});
    for (int rank = 0; rank < 3; ++rank) {
      ASSERT_EQ(all.links[rank].size(), 2u);
      for (const MeasuredLink& link : all.links[rank]) {
        EXPECT_GT(link.bytes_per_second, 10e6);
        EXPECT_GT(link.latency_seconds, 0);
        EXPECT_LT(link.latency_seconds, 0.02);
      }
    }
  }
}

}  // namespace
}  // namespace muster::collectives
