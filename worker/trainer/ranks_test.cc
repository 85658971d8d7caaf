#include "worker/trainer/ranks.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/collectives/memory_key_value.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

// What the last of `world` ranks gets whose digest of one group differs from the others'; none: group -1.
absl::Status JoinWithOther(uint32_t world, uint32_t shards, int32_t group) {
  collectives::MemoryKeyValue rendezvous;
  std::vector<absl::StatusOr<Ranks>> joined(world);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Assignment assignment;
      assignment.set_world(world);
      assignment.mutable_key()->set_rank(rank);
      GroupDigests digests = {"by all", "in a replica", "between replicas", ""};
      if (group == kExchangeGroup) digests[group] = "inside passes";
      if (rank + 1 == world && group >= 0) digests[group] = "other";
      joined[rank] = JoinRanks(assignment, shards, digests, rendezvous);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t rank = 0; rank + 1 < world; ++rank) EXPECT_TRUE(joined[rank].ok()) << joined[rank].status();
  return joined[world - 1].status();
}

TEST(JoinRanks, ARankWithOtherCollectivesIsNamedWithTheOneItDiffersFrom) {
  struct Case {
    uint32_t world, shards;
    int32_t group;
    const char* says;
  };
  for (const Case& c :
       {Case{2, 2, kWorldGroup, "rank 1 would issue other collectives in the group world than rank 0"},
        Case{2, 2, kShardGroup, "rank 1 would issue other collectives in the group world than rank 0"},
        Case{2, 1, kReplicaGroup, "rank 1 would issue other collectives in the group world than rank 0"},
        Case{2, 1, kExchangeGroup, "rank 1 would issue other collectives in the group exchange than rank 0"},
        Case{4, 2, kReplicaGroup,
             "rank 3 would issue other collectives in the group replicas-1 than rank 1: two different "
             "builds"}}) {
    EXPECT_EQ(JoinWithOther(c.world, c.shards, -1), absl::OkStatus());
    const absl::Status status = JoinWithOther(c.world, c.shards, c.group);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.says));
  }
}

// Its collectives come between others in another order on each rank.
TEST(JoinRanks, TheGroupOfExchangesIsOneOfItsOwnAndOnlyThereIfNeeded) {
  for (const bool exchanges : {false, true}) {
    collectives::MemoryKeyValue rendezvous;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        Assignment assignment;
        assignment.set_world(2);
        assignment.mutable_key()->set_rank(rank);
        const GroupDigests digests = {"by all", "in a replica", "between replicas", exchanges ? "inside passes" : ""};
        const auto joined = JoinRanks(assignment, 1, digests, rendezvous);
        ASSERT_TRUE(joined.ok()) << joined.status();
        collectives::Group* const group = joined->groups[kExchangeGroup];
        ASSERT_EQ(group != nullptr, exchanges);
        if (!exchanges) return;
        EXPECT_NE(group, joined->groups[kWorldGroup]);
        EXPECT_EQ(group->size(), 2);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace muster::trainer
