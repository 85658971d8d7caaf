#include "worker/trainer/ranks.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/collectives/memory_key_value.h"

namespace muster::trainer {
namespace {

using ::testing::HasSubstr;

std::vector<GroupToJoin> Common(bool exchanges) {
  std::vector<GroupToJoin> groups;
  for (int32_t number = 0; number < kGroups; ++number) {
    if ((number == kExchangeGroup && !exchanges) || number == kContextTensorGroup) continue;
    groups.push_back({CommonGroups()[static_cast<size_t>(number)], absl::StrCat("digest of ", number), number});
  }
  return groups;
}

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
      std::vector<GroupToJoin> groups = Common(/*exchanges=*/group == kExchangeGroup);
      for (GroupToJoin& to_join : groups) {
        if (rank + 1 == world && to_join.number == group) to_join.digest = "other";
      }
      joined[rank] = JoinRanks(assignment, {.replica = world / shards, .shard = shards}, groups, rendezvous);
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
       {Case{2, 2, kWorldGroup, "rank 1 would issue other collectives in the group world-0 than rank 0"},
        Case{2, 2, kShardGroup, "rank 1 would issue other collectives in the group shards-0 than rank 0"},
        Case{2, 1, kReplicaGroup, "rank 1 would issue other collectives in the group replicas-0 than rank 0"},
        Case{2, 1, kExchangeGroup, "rank 1 would issue other collectives in the group exchange-0 than rank 0"},
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
        const auto joined = JoinRanks(assignment, {.replica = 2}, Common(exchanges), rendezvous);
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

Train MeshOf(uint32_t stages, uint32_t tensor, uint32_t context) {
  Train train;
  Llama& m = *train.mutable_model()->mutable_llama();
  m.set_layers(2), m.set_heads(2), m.set_key_value_heads(2), m.set_width(8), m.set_head_width(4), m.set_inner(8);
  m.set_vocabulary(16), m.set_context(8);
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_sgd();
  train.mutable_parallel()->set_pipeline(stages);
  train.mutable_parallel()->set_tensor(tensor);
  train.mutable_parallel()->set_context(context);
  Fsdp& fsdp = *train.mutable_strategy()->mutable_fsdp();
  fsdp.set_reshard(RESHARD_HYBRID), fsdp.set_shard_ranks(2);
  fsdp.set_placement(PLACEMENT_EVEN), fsdp.set_accumulation(ACCUMULATION_REDUCE);
  return train;
}

// The ranks of a group as a number in binary: each adds its own digit.
uint64_t MembersOf(collectives::Group* group, uint32_t rank) {
  if (group == nullptr) return 0;
  const at::Tensor sum = at::full({1}, static_cast<int64_t>(uint64_t{1} << rank), at::kLong);
  EXPECT_TRUE(group->AllReduce(sum)->Wait().ok());
  return static_cast<uint64_t>(sum.item<int64_t>());
}

// Eight ranks: two stages of two replicas of two shards, four stages of two shards, and with two ranks that compute
// each unit together two stages of two shards, and two replicas of two shards. Then with two or four that share
// samples: shards of one replica, or shards and replicas. The members of each rank's groups in binary, written out by
// hand.
TEST(JoinRanks, RanksMeetInTheGroupsOfTheirMesh) {
  struct Case {
    uint32_t stages, tensor, context, rank;
    uint64_t shards, replicas, model, together, sharers;
    std::vector<uint64_t> edges;  // in both directions
  };
  const std::vector<Case> cases = {
      {2, 1, 1, 0, 0b00000011, 0b00000101, 0b00110011, 0, 0, {0b00010001, 0b00010001}},
      {2, 1, 1, 3, 0b00001100, 0b00001010, 0b11001100, 0, 0, {0b10001000, 0b10001000}},
      {2, 1, 1, 5, 0b00110000, 0b10100000, 0b00110011, 0, 0, {0b00100010, 0b00100010}},
      {4, 1, 1, 1, 0b00000011, 0, 0b11111111, 0, 0, {0b00001010, 0b00001010}},
      {4, 1, 1, 4, 0b00110000, 0, 0b11111111, 0, 0, {0b00010100, 0b00010100, 0b01010000, 0b01010000}},
      {2, 2, 1, 0, 0b00000101, 0, 0b11111111, 0b00000011, 0, {0b00010001, 0b00010001}},
      {2, 2, 1, 5, 0b10100000, 0, 0b11111111, 0b00110000, 0, {0b00100010, 0b00100010}},
      {2, 2, 1, 7, 0b10100000, 0, 0b11111111, 0b11000000, 0, {0b10001000, 0b10001000}},
      {1, 2, 1, 3, 0b00001010, 0b10001000, 0b00001111, 0b00001100, 0, {}},
      {1, 2, 1, 6, 0b01010000, 0b01000100, 0b11110000, 0b11000000, 0, {}},
      {1, 2, 2, 0, 0b00000101, 0b00010001, 0b00001111, 0b00000011, 0b00000101, {}},
      {1, 2, 2, 7, 0b10100000, 0b10001000, 0b11110000, 0b11000000, 0b10100000, {}},
      {1, 1, 4, 2, 0b00001100, 0b01010101, 0b00001100, 0, 0b00001111, {}},
      {1, 1, 4, 5, 0b00110000, 0b10101010, 0b00110000, 0, 0b11110000, {}},
      {2, 1, 2, 3, 0b00001100, 0b00001010, 0b11001100, 0, 0b00001100, {0b10001000, 0b10001000}},
  };
  const std::array<uint32_t, 3> meshes[] = {{2, 1, 1}, {4, 1, 1}, {2, 2, 1}, {1, 2, 1},
                                            {1, 2, 2}, {1, 1, 4}, {2, 1, 2}};
  for (const auto& mesh : meshes) {
    const uint32_t stages = mesh[0], tensor = mesh[1], context = mesh[2];
    const Train train = MeshOf(stages, tensor, context);
    const Inventory inventory = *models::MakeInventory(train);
    const auto layout = strategies::MakeLayout(train, inventory, strategies::AnyPlaces(8));
    ASSERT_TRUE(layout.ok()) << layout.status();
    collectives::MemoryKeyValue rendezvous;
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < 8; ++rank) {
      threads.emplace_back([&, rank] {
        const auto program = strategies::Compile(train, inventory, *layout, rank);
        ASSERT_TRUE(program.ok()) << program.status();
        Assignment assignment;
        assignment.set_world(8);
        assignment.mutable_key()->set_rank(rank);
        const std::vector<GroupToJoin> groups = GroupsToJoin(inventory, *layout, *program);
        EXPECT_EQ(groups.size(), 6 + 2 * (stages - 1)) << "all ranks name the edges of all stages";
        const auto joined = JoinRanks(assignment, layout->mesh, groups, rendezvous);
        ASSERT_TRUE(joined.ok()) << joined.status();
        ASSERT_EQ(joined->groups.size(), program->schedule.groups.size());
        std::vector<uint64_t> members;
        for (collectives::Group* group : joined->groups) members.push_back(MembersOf(group, rank));
        EXPECT_EQ(members[kWorldGroup], 0b11111111u);
        for (const Case& c : cases) {
          if (mesh != std::array{c.stages, c.tensor, c.context} || c.rank != rank) continue;
          EXPECT_EQ(members[kShardGroup], c.shards) << rank;
          EXPECT_EQ(members[kReplicaGroup], c.replicas) << rank;
          EXPECT_EQ(members[kModelGroup], c.model) << rank;
          EXPECT_EQ(members[kTensorGroup], c.together) << rank;
          EXPECT_EQ(members[kContextGroup], c.sharers) << rank;
          std::vector<uint64_t> edges(members.begin() + kGroups, members.end());
          std::sort(edges.begin(), edges.end());
          EXPECT_EQ(edges, c.edges) << rank;
        }
        EXPECT_EQ(members[kExchangeGroup], 0u) << "no unit exchanges";
        EXPECT_EQ(members[kContextTensorGroup], 0u) << "each of the two groups has its own";
        EXPECT_TRUE(joined->groups[kWorldGroup]->Barrier().ok());
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(CollectiveDeadline, IsThatOfTheAxesAlongWhichMembersDiffer) {
  Assignment assignment;
  assignment.mutable_collective_deadline()->set_seconds(600);
  AxisTimeouts& set = *assignment.mutable_spec()->mutable_train()->mutable_communication()->mutable_timeout_seconds();
  set.set_pipeline(100), set.set_replica(1000), set.set_tensor(50);
  const Mesh mesh{.pipeline = 2, .replica = 2, .shard = 1, .tensor = 2};
  const struct {
    const char* what;
    GroupSpec group;
    int seconds;
  } kCases[] = {
      {"world", {.axes = kAllAxes}, 1000},
      {"replicas", {.axes = kReplicaAxis}, 1000},
      {"replicas between nodes", {.axes = kReplicasBetween}, 1000},
      {"one shard", {.axes = kShardAxis}, 600},
      {"one copy of the model", {.axes = kModelAxes}, 100},
      {"tensor", {.axes = kTensorAxis}, 50},
      {"edge", {.axes = kPipelineAxis, .channel = Channel::kActivations, .from = 0, .to = 1}, 100},
  };
  for (const auto& test : kCases) {
    EXPECT_EQ(CollectiveDeadline(assignment, mesh, test.group), absl::Seconds(test.seconds)) << test.what;
  }
  const Mesh sharded{.replica = 2, .shard = 2};
  EXPECT_EQ(CollectiveDeadline(assignment, sharded, {.axes = kShardAxis}), absl::Seconds(600)) << "not set";
  const GroupSpec sharers{.axes = kContextAxis, .channel = Channel::kContext};
  EXPECT_EQ(CollectiveDeadline(assignment, {.replica = 4, .context = 2}, sharers), absl::Seconds(1000));
  EXPECT_EQ(CollectiveDeadline(assignment, {.replica = 2, .shard = 2, .context = 4}, sharers), absl::Seconds(1000));
  set.set_shard(70);
  EXPECT_EQ(CollectiveDeadline(assignment, {.replica = 2, .shard = 4, .context = 2}, sharers), absl::Seconds(70));
  set.set_context(80);
  EXPECT_EQ(CollectiveDeadline(assignment, {.replica = 2, .shard = 2, .context = 4}, sharers), absl::Seconds(80));
  EXPECT_EQ(CollectiveDeadline(assignment, {.replica = 2, .shard = 4, .context = 2}, {.axes = kShardAxis}),
            absl::Seconds(70))
      << "also those that share sequences are members of it";
  set.clear_context();
  set.clear_shard();
  set.set_replica(90);
  EXPECT_EQ(CollectiveDeadline(assignment, sharded, {.axes = kAllAxes}), absl::Seconds(600)) << "the longest";
}

// Four ranks, of which the last never comes to the sum of the two that compute a unit together, and comes late to that
// of the replicas.
TEST(JoinRanks, EachAxisWaitsForItsOwnTime) {
  collectives::MemoryKeyValue rendezvous;
  absl::Notification gave_up;
  std::vector<absl::Status> ended(4);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      Assignment assignment;
      assignment.set_world(4);
      assignment.mutable_key()->set_rank(rank);
      AxisTimeouts& set =
          *assignment.mutable_spec()->mutable_train()->mutable_communication()->mutable_timeout_seconds();
      set.set_replica(600), set.set_tensor(0.3);
      const auto joined = JoinRanks(assignment, {.replica = 2, .tensor = 2}, Common(/*exchanges=*/false), rendezvous);
      ASSERT_TRUE(joined.ok()) << joined.status();
      const at::Tensor one = at::full({1}, 1, at::kFloat);
      if (rank == 0 || rank == 3) gave_up.WaitForNotification();
      if (rank == 0) return;
      ended[rank] = joined->groups[rank == 2 ? kTensorGroup : kReplicaGroup]->AllReduce(one)->Wait();
      if (rank == 2) gave_up.Notify();
      if (rank != 2) {
        EXPECT_EQ(one.item<float>(), 2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(ended[2].ok());
  EXPECT_TRUE(ended[1].ok()) << ended[1];
  EXPECT_TRUE(ended[3].ok()) << ended[3];
}

// A split of the world's communicator needs all ranks, also those of stages whose units exchange nothing.
TEST(GroupsToJoin, AreTheSameOnAllRanks) {
  Train train;
  Resnet& m = *train.mutable_model()->mutable_resnet();
  m.set_depth(8), m.set_width(3), m.set_image(8), m.set_classes(6), m.set_sync_batch_norm(true);
  *train.mutable_model() = *models::Resolve(train.model());
  train.mutable_batch()->set_sequences(8);
  train.mutable_batch()->set_microbatch(1);
  train.mutable_optimizer()->mutable_sgd();
  train.mutable_strategy()->mutable_ddp();
  const Inventory all = *models::MakeInventory(train);
  train.mutable_parallel()->set_pipeline(static_cast<uint32_t>(all.units_size()));  // the last one has the head alone
  const uint32_t world = 2 * train.parallel().pipeline();
  const auto layout = strategies::MakeLayout(train, all, strategies::AnyPlaces(world));
  ASSERT_TRUE(layout.ok()) << layout.status();
  std::vector<std::vector<GroupSpec>> of;
  for (uint32_t rank = 0; rank < world; ++rank) {
    std::vector<GroupSpec>& specs = of.emplace_back();
    for (const GroupToJoin& group : GroupsToJoin(all, *layout, *strategies::Compile(train, all, *layout, rank))) {
      specs.push_back(group.spec);
    }
    EXPECT_EQ(specs, of[0]) << rank;
  }
  EXPECT_THAT(of[0], ::testing::Contains(CommonGroups()[kExchangeGroup]));
}

}  // namespace
}  // namespace muster::trainer
