#include "worker/collectives/timed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "worker/collectives/threads.h"

namespace muster::collectives {
namespace {

constexpr Timed kAllTimed[] = {Timed::kAllReduce, Timed::kAllGather, Timed::kReduceScatter, Timed::kBroadcast,
                               Timed::kReduce};

std::vector<absl::StatusOr<Timing>> TimeOnRanks(int size, const TimingOptions& options, std::atomic<int>& calls) {
  const std::vector<std::unique_ptr<Group>> groups = MakeThreads(size, absl::Seconds(20));
  std::vector<absl::StatusOr<Timing>> timings(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      timings[static_cast<size_t>(rank)] =
          TimeCollective(*groups[static_cast<size_t>(rank)], options, c10::kCPU, [&] { ++calls; });
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return timings;
}

// nccl-tests' doc/PERFORMANCE.md, "Summary".
TEST(TimeCollective, BusBandwidthIsThatOfNcclTests) {
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kAllReduce, 2), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kAllGather, 8), 0.875);
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kReduceScatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kBroadcast, 8), 1);
  EXPECT_DOUBLE_EQ(BusFactor(Timed::kReduce, 8), 1);
}

TEST(TimeCollective, AllRanksReportTheSame) {
  for (const Timed collective : kAllTimed) {
    std::atomic<int> calls = 0;
    const auto timings =
        TimeOnRanks(3, {.collective = collective, .bytes = 1000, .about = absl::Milliseconds(5)}, calls);
    for (const absl::StatusOr<Timing>& timing : timings) {
      ASSERT_TRUE(timing.ok()) << timing.status();
      const bool divided = collective == Timed::kAllGather || collective == Timed::kReduceScatter;
      EXPECT_EQ(timing->bytes, divided ? 83u * 3 * 4 : 1000u) << "three ranks have 83 floats each";
      EXPECT_EQ(timing->count, divided ? 83u : 250u);
      EXPECT_GT(timing->seconds, 0);
      EXPECT_EQ(timing->seconds, timings[0]->seconds);
      EXPECT_EQ(timing->iterations, timings[0]->iterations);
      EXPECT_DOUBLE_EQ(timing->algorithm_bytes_per_second, static_cast<double>(timing->bytes) / timing->seconds);
      EXPECT_DOUBLE_EQ(timing->bus_bytes_per_second, timing->algorithm_bytes_per_second * BusFactor(collective, 3));
    }
  }
}

TEST(TimeCollective, BucketsAreCallsOfTheirOwn) {
  for (const Timed collective : kAllTimed) {
    std::atomic<int> flat = 0, bucketed = 0;
    const TimingOptions options{.collective = collective, .bytes = 4096, .about = absl::ZeroDuration()};
    for (const auto& timing : TimeOnRanks(2, options, flat)) ASSERT_TRUE(timing.ok()) << timing.status();
    TimingOptions in_buckets = options;
    in_buckets.bucket_bytes = 1024;
    for (const auto& timing : TimeOnRanks(2, in_buckets, bucketed)) {
      ASSERT_TRUE(timing.ok()) << timing.status();
      EXPECT_EQ(timing->bytes, 4096u);
    }
    EXPECT_EQ(flat * 4, bucketed);
  }
}

TEST(TimeCollective, TheSmallestSizeIsAnElementOfEachRank) {
  std::atomic<int> calls = 0;
  for (const auto& timing : TimeOnRanks(2, {.collective = Timed::kAllGather, .bytes = 1}, calls)) {
    ASSERT_TRUE(timing.ok()) << timing.status();
    EXPECT_EQ(timing->bytes, 8u);
    EXPECT_EQ(timing->count, 1u);
  }
}

// Six ranks, three on each of two nodes. Each has a group of its node and one of its place.
TEST(TimeCollective, TwoLevelsGiveWhatOneGives) {
  constexpr int kPlaces = 3, kNodes = 2;
  const auto world = MakeThreads(kPlaces * kNodes, absl::Seconds(20));
  std::vector<std::vector<std::unique_ptr<Group>>> inside, between;
  for (int node = 0; node < kNodes; ++node) inside.push_back(MakeThreads(kPlaces, absl::Seconds(20)));
  for (int place = 0; place < kPlaces; ++place) between.push_back(MakeThreads(kNodes, absl::Seconds(20)));
  for (const Timed collective : kAllTimed) {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kPlaces * kNodes; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto node = static_cast<size_t>(rank / kPlaces), place = static_cast<size_t>(rank % kPlaces);
        const TimingOptions options{.collective = collective,
                                    .levels = {inside[node][place].get(), between[place][node].get()},
                                    .bytes = 4000,
                                    .bucket_bytes = 1000,
                                    .about = absl::Milliseconds(5)};
        const auto timing = TimeCollective(*world[static_cast<size_t>(rank)], options, c10::kCPU, [] {});
        if (!HasTwoLevels(collective)) {
          EXPECT_EQ(timing.status().code(), absl::StatusCode::kInvalidArgument);
          return;
        }
        ASSERT_TRUE(timing.ok()) << timing.status() << " rank " << rank << " of " << static_cast<int>(collective);
        EXPECT_EQ(timing->bytes, 166u * 6 * 4);
        EXPECT_EQ(timing->count, collective == Timed::kAllReduce ? 996u : 166u);
        EXPECT_DOUBLE_EQ(timing->bus_bytes_per_second,
                         timing->algorithm_bytes_per_second * BusFactor(collective, kPlaces * kNodes));
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
}

// Sums in which a rank's share is missing.
class Forgetful final : public Group {
 public:
  explicit Forgetful(Group& group) : group_(group) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  std::unique_ptr<Work> AllReduce(at::Tensor values) override {
    if (rank() == 1 && values.numel() > 1) values.zero_();
    return group_.AllReduce(values);
  }
  std::unique_ptr<Work> AllGather(std::vector<at::Tensor> wholes) override { return group_.AllGather(wholes); }
  std::unique_ptr<Work> ReduceScatter(std::vector<at::Tensor> wholes) override { return group_.ReduceScatter(wholes); }
  std::unique_ptr<Work> Broadcast(at::Tensor values, int root) override { return group_.Broadcast(values, root); }
  std::unique_ptr<Work> BroadcastShares(std::vector<RankShare> shares) override {
    return group_.BroadcastShares(shares);
  }
  std::unique_ptr<Work> ReduceShares(std::vector<RankShare> shares) override { return group_.ReduceShares(shares); }
  std::unique_ptr<Work> Send(at::Tensor values, int to) override { return group_.Send(values, to); }
  std::unique_ptr<Work> Recv(at::Tensor values, int from) override { return group_.Recv(values, from); }
  absl::Status Barrier() override { return group_.Barrier(); }
  absl::Status Health() override { return group_.Health(); }

 private:
  Group& group_;
};

TEST(TimeCollective, AWrongSumIsAnError) {
  const std::vector<std::unique_ptr<Group>> groups = MakeThreads(2, absl::Seconds(20));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      Forgetful group(*groups[static_cast<size_t>(rank)]);
      const auto timing = TimeCollective(group, {.bytes = 64}, c10::kCPU, [] {});
      EXPECT_EQ(timing.status().code(), absl::StatusCode::kInternal) << timing.status();
      EXPECT_THAT(std::string(timing.status().message()), testing::HasSubstr("gave a wrong result on rank"));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

}  // namespace
}  // namespace muster::collectives
