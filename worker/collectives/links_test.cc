#include "worker/collectives/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "absl/time/time.h"
#include "worker/collectives/gloo_groups_test.h"
#include "worker/collectives/memory_key_value.h"

namespace muster::collectives {
namespace {

// What lies between ranks, each of which has a clock of its own: it stands still while the rank computes, and a message
// that arrives later than it moves it on. So a test takes the time of no machine.
struct SimulatedLinks {
  struct One {
    double bytes_per_second = 1e9, latency_seconds = 0;
  };
  std::map<std::pair<int, int>, One> links;  // by (from, to)
  std::map<int, absl::Duration> now;         // by rank; only its thread reads or changes it
  std::map<int, absl::Duration> used;        // likewise: of its processor
  double sending = 0, receiving = 0;         // seconds of a processor for each byte
  std::mutex mutex;
  std::condition_variable arrived;
  struct Sent {
    at::Tensor values;
    absl::Duration at;
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
    absl::Duration& now = between_.now.at(way_.second);
    now = std::max(now, sent.at);
    between_.used.at(way_.second) += absl::Seconds(between_.receiving * static_cast<double>(values_.nbytes()));
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
    const SimulatedLinks::One& link = between_.links.at({rank_, to});
    const double seconds = link.latency_seconds + static_cast<double>(values.nbytes()) / link.bytes_per_second;
    between_.used.at(rank_) += absl::Seconds(between_.sending * static_cast<double>(values.nbytes()));
    const std::lock_guard lock(between_.mutex);
    between_.sent[{rank_, to}].push_back({values.clone(), between_.now.at(rank_) + absl::Seconds(seconds)});
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
  double seconds = 0;                            // of the rank that took longest, by its clock
};

MeasuredByAll MeasureSimulated(SimulatedLinks& between, int size, const std::vector<std::pair<int, int>>& pairs) {
  MeasuredByAll all{.links = std::vector<std::vector<MeasuredLink>>(static_cast<size_t>(size))};
  for (int rank = 0; rank < size; ++rank) between.now[rank] = between.used[rank] = absl::ZeroDuration();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      SimulatedGroup group(between, rank, size);
      auto measured = MeasureLinks(
          group, pairs, absl::Milliseconds(800), c10::kCPU, [&now = between.now.at(rank)] { return now; },
          [&used = between.used.at(rank)] { return used; });
      ASSERT_TRUE(measured.ok()) << measured.status();
      all.links[static_cast<size_t>(rank)] = *std::move(measured);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [rank, now] : between.now) all.seconds = std::max(all.seconds, absl::ToDoubleSeconds(now));
  return all;
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
      EXPECT_NEAR(all.links[rank][0].bytes_per_second / link.bytes_per_second, 1, 0.1) << link.bytes_per_second;
      EXPECT_NEAR(all.links[rank][0].latency_seconds, link.latency_seconds, 0.1 * link.latency_seconds);
    }
  }
}

// 2 ns to send a byte and 3 ns to receive one: a core that does both moves 200 MB/s in each direction, whatever the
// link carries.
TEST(MeasureLinks, FindsWhatACoreMovesFromItsProcessorTime) {
  for (const double bytes_per_second : {12.5e6, 1.25e9}) {
    SimulatedLinks between;
    between.links = {{{0, 1}, {bytes_per_second, 1e-3}}, {{1, 0}, {bytes_per_second, 1e-3}}};
    between.sending = 2e-9, between.receiving = 3e-9;
    const MeasuredByAll all = MeasureSimulated(between, 2, {{0, 1}});
    for (const int rank : {0, 1}) {
      EXPECT_NEAR(all.links[rank][0].socket_bytes_per_second / 200e6, 1, 0.01) << bytes_per_second;
    }
  }
  // Of 1 Mbit/s no message is large enough to say anything.
  SimulatedLinks between;
  between.links = {{{0, 1}, {125e3, 2e-3}}, {{1, 0}, {125e3, 2e-3}}};
  between.sending = between.receiving = 1e-9;
  EXPECT_EQ(MeasureSimulated(between, 2, {{0, 1}}).links[0][0].socket_bytes_per_second, 0);
}

TEST(MeasureLinks, TakesLinksOfDifferentRanksAtTheSameTime) {
  SimulatedLinks between;
  const std::vector<std::pair<int, int>> pairs = {{0, 3}, {1, 2}, {0, 2}, {1, 3}, {0, 1}, {2, 3}};
  for (const auto& [a, b] : pairs) between.links[{a, b}] = between.links[{b, a}] = {1e6 * (1 + a + b), 1e-3};
  const MeasuredByAll all = MeasureSimulated(between, 5, pairs);
  EXPECT_LT(all.seconds, 1);
  EXPECT_TRUE(all.links[4].empty()) << "no pair names it";
  for (int rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(all.links[rank].size(), 3u) << rank;
    for (const MeasuredLink& link : all.links[rank]) {
      EXPECT_NEAR(link.bytes_per_second / (1e6 * (1 + rank + link.to)), 1, 0.1) << rank << " to " << link.to;
    }
  }
}

TEST(MeasureLinks, WorksOverGloosSocketsAndDirectly) {
  for (const bool direct : {false, true}) {
    MemoryKeyValue rendezvous;
    const std::vector<std::unique_ptr<Group>> groups = JoinGloo(3, absl::Seconds(20), direct, rendezvous);
    std::vector<std::vector<MeasuredLink>> links(groups.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      threads.emplace_back([&, rank] {
        auto measured = MeasureLinks(*groups[rank], {{0, 1}, {0, 2}, {1, 2}}, absl::Milliseconds(400), c10::kCPU);
        ASSERT_TRUE(measured.ok()) << measured.status();
        links[rank] = *std::move(measured);
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      ASSERT_EQ(links[rank].size(), 2u);
      for (const MeasuredLink& link : links[rank]) {
        EXPECT_NE(link.to, static_cast<int>(rank));
        EXPECT_GT(link.bytes_per_second, 0);
        EXPECT_GT(link.latency_seconds, 0);
        if (direct) continue;  // the ranks of a machine may send by its memory
        EXPECT_GT(link.socket_bytes_per_second, 1e6) << "any CPU of this century";
        EXPECT_LT(link.socket_bytes_per_second, 1e12);
      }
    }
  }
}

}  // namespace
}  // namespace muster::collectives
