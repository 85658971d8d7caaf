// Conformance of NCCL, on as many GPUs as there are: one rank, a thread, on each.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "worker/collectives/conformance_test.h"
#include "worker/collectives/memory_key_value.h"
#include "worker/collectives/message_conformance_test.h"
#include "worker/collectives/nccl.h"

namespace muster::collectives {
namespace {

Groups NcclGroups(int size, absl::Duration timeout) {
  static std::vector<std::unique_ptr<MemoryKeyValue>> rendezvous;  // kept for the groups' life
  MemoryKeyValue& values = *rendezvous.emplace_back(std::make_unique<MemoryKeyValue>());
  Groups groups(static_cast<size_t>(size));
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      auto group = MakeNccl({.rank = rank,
                             .size = size,
                             .name = "world",
                             .host = "127.0.0.1",
                             .device = rank,
                             .timeout = timeout,
                             .join_timeout = absl::Seconds(60)},
                            values);
      ASSERT_TRUE(group.ok()) << group.status();
      groups[static_cast<size_t>(rank)] = *std::move(group);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return groups;
}

TEST(Nccl, RowsAndColumnsOfRanksAreGroups) {
  const int size = static_cast<int>(c10::cuda::device_count());
  ASSERT_GE(size, 1) << "there is no GPU: the test would pass without having run";
  MemoryKeyValue values;
  const Groups groups = NcclGroups(size, absl::Seconds(60));
  ExpectRowsAndColumns(groups, [&](DeviceGroup& world, int color, int rank, int part) {
    return SplitNccl(world, color,
                     {.rank = rank,
                      .size = part,
                      .name = absl::StrCat(part == 2 ? "row-" : "column-", color),
                      .host = "127.0.0.1",
                      .device = world.rank(),
                      .timeout = absl::Seconds(60)},
                     values);
  });
}

TEST(Nccl, ARankMayBeInNoPartOfASplit) {
  const int size = static_cast<int>(c10::cuda::device_count());
  ASSERT_GE(size, 1) << "there is no GPU: the test would pass without having run";
  if (size == 1) {  // the only rank is in none
    const Groups groups = NcclGroups(1, absl::Seconds(60));
    MemoryKeyValue values;
    const auto none = SplitNccl(dynamic_cast<DeviceGroup&>(*groups[0]), kNoColor, {}, values);
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ(*none, nullptr);
    return;
  }
  MemoryKeyValue values;
  const Groups groups = NcclGroups(size, absl::Seconds(60));
  ExpectAPairAndNoPartOfTheOthers(groups, [&](DeviceGroup& world, int color, int rank, int part) {
    return SplitNccl(world, color,
                     {.rank = rank,
                      .size = part,
                      .name = "pair",
                      .host = "127.0.0.1",
                      .device = world.rank(),
                      .timeout = absl::Seconds(60)},
                     values);
  });
}

Backend NcclBackend() {
  return {"nccl", c10::kCUDA, static_cast<int>(c10::cuda::device_count()), NcclGroups, /*tells_of_messages=*/true};
}
std::string NameOf(const testing::TestParamInfo<Backend>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Backends, Conformance, ::testing::Values(NcclBackend()), NameOf);
INSTANTIATE_TEST_SUITE_P(Backends, MessageConformance, ::testing::Values(NcclBackend()), NameOf);

}  // namespace
}  // namespace muster::collectives
