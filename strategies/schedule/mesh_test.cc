#include "strategies/schedule/mesh.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace muster {
namespace {

// rank = ((p * R + r) * S + s) * T + t, written out for 2 x 2 x 2 x 1 and 2 x 1 x 1 x 2.
TEST(Mesh, Coordinates) {
  const Mesh data{.pipeline = 2, .replica = 2, .shard = 2};
  const Coordinate expected[] = {{0, 0, 0, 0}, {0, 0, 1, 0}, {0, 1, 0, 0}, {0, 1, 1, 0},
                                 {1, 0, 0, 0}, {1, 0, 1, 0}, {1, 1, 0, 0}, {1, 1, 1, 0}};
  const uint32_t owners[] = {0, 1, 0, 1, 2, 3, 2, 3}, samples[] = {0, 1, 2, 3, 0, 1, 2, 3};
  for (uint32_t rank = 0; rank < 8; ++rank) {
    const Coordinate at = CoordinateOf(data, rank);
    EXPECT_EQ(at, expected[rank]) << rank;
    EXPECT_EQ(RankAt(data, at), rank);
    EXPECT_EQ(OwnerAt(data, at), owners[rank]);
    EXPECT_EQ(DataRankAt(data, at), samples[rank]);
  }
  EXPECT_EQ(Print(data, CoordinateOf(data, 6)), "stage 1, replica 1, shard 0");
  const Mesh tensor{.pipeline = 2, .tensor = 2};
  EXPECT_EQ(CoordinateOf(tensor, 3), (Coordinate{.pipeline = 1, .tensor = 1}));
  EXPECT_EQ(OwnerAt(tensor, CoordinateOf(tensor, 3)), 3u);
  EXPECT_EQ(DataRankAt(tensor, CoordinateOf(tensor, 3)), 0u);
  EXPECT_EQ(Print(tensor, CoordinateOf(tensor, 3)), "stage 1, tensor 1");
}

// 2 stages of 2 replicas of 2 shards that 3 ranks compute together: what is written of ranks 0, 1, 5, 7, 16 and 23.
TEST(Mesh, NumbersOfOwnersFilesAndParts) {
  const Mesh mesh{.pipeline = 2, .replica = 2, .shard = 2, .tensor = 3};
  EXPECT_EQ(mesh.ranks(), 24u);
  EXPECT_EQ(mesh.ranks_of_stage(), 12u);
  EXPECT_EQ(mesh.owners(), 12u);
  EXPECT_EQ(mesh.parts(), 6u);
  struct Case {
    uint32_t rank;
    Coordinate at;
    uint32_t owner, file, part;
  };
  const Case cases[] = {{0, {0, 0, 0, 0}, 0, 0, 0},  {1, {0, 0, 0, 1}, 1, 1, 1},    {5, {0, 0, 1, 2}, 5, 5, 2},
                        {7, {0, 1, 0, 1}, 1, 13, 1}, {16, {1, 0, 1, 1}, 10, 10, 4}, {23, {1, 1, 1, 2}, 11, 23, 5}};
  for (const Case& test : cases) {
    const Coordinate at = CoordinateOf(mesh, test.rank);
    EXPECT_EQ(at, test.at) << test.rank;
    EXPECT_EQ(OwnerAt(mesh, at), test.owner) << test.rank;
    EXPECT_EQ(FileAt(mesh, at), test.file) << test.rank;
    EXPECT_EQ(PartAt(mesh, at), test.part) << test.rank;
    Coordinate owner = test.at;
    owner.replica = 0;
    EXPECT_EQ(CoordinateOfOwner(mesh, test.owner), owner) << test.rank;
  }
  EXPECT_EQ(CoordinateOfOwner(mesh, 12), (Coordinate{.pipeline = 2})) << "none of its owners";
}

TEST(Mesh, AxesThatTakeTheOtherRanks) {
  EXPECT_EQ(WithReplicasFor({.pipeline = 2, .shard = 3, .tensor = 2}, 24),
            (Mesh{.pipeline = 2, .replica = 2, .shard = 3, .tensor = 2}));
  EXPECT_EQ(WithShardsFor({.pipeline = 2, .tensor = 2}, 24), (Mesh{.pipeline = 2, .shard = 6, .tensor = 2}));
  EXPECT_EQ(WithShardsFor({.replica = 4}, 24), (Mesh{.replica = 4, .shard = 6}));
  EXPECT_EQ(WithReplicasFor({.shard = 4}, 0), (Mesh{.shard = 4})) << "at least one";
}

TEST(Mesh, RanksOfAStage) {
  const std::vector<char> by_rank = {'a', 'b', 'c', 'd', 'e', 'f'};
  const Mesh mesh{.pipeline = 3, .replica = 2};
  EXPECT_EQ(OfStage(mesh, absl::MakeConstSpan(by_rank), 0), (std::vector<char>{'a', 'b'}));
  EXPECT_EQ(OfStage(mesh, absl::MakeConstSpan(by_rank), 2), (std::vector<char>{'e', 'f'}));
}

TEST(Mesh, PlacesInNodes) {
  const NodePlace expected[] = {{0, 0}, {0, 1}, {0, 2}, {1, 0}, {1, 1}, {1, 2}, {2, 0}};
  for (uint32_t place = 0; place < 7; ++place) EXPECT_EQ(NodePlaceOf(place, 3), expected[place]) << place;
  // 100 elements are 7 vectors of 16, of which three ranks have 2, 2 and 3; the last one is not whole.
  EXPECT_EQ(NodePartOf(100, 3, 0), (NodePart{0, 32}));
  EXPECT_EQ(NodePartOf(100, 3, 1), (NodePart{32, 64}));
  EXPECT_EQ(NodePartOf(100, 3, 2), (NodePart{64, 100}));
  EXPECT_EQ(NodePartOf(10, 2, 0), (NodePart{0, 0}));
  EXPECT_EQ(NodePartOf(10, 2, 1), (NodePart{0, 10}));
  const Mesh mesh{.replica = 8, .shard = 6, .replicas_inside = 4, .shards_inside = 2};
  EXPECT_EQ(mesh.replicas_between(), 2u);
  EXPECT_EQ(mesh.shards_between(), 3u);
}

TEST(Mesh, AllGroupsOfAKind) {
  using Groups = std::vector<std::vector<uint32_t>>;
  const Mesh mesh{.pipeline = 2, .replica = 2, .tensor = 2};
  EXPECT_EQ(GroupsOf(mesh, {.axes = kTensorAxis}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(GroupsOf(mesh, {.axes = kDataAxes}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}})) << "in PartAt's order";
  EXPECT_EQ(GroupsOf(mesh, {.axes = kModelAxes}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
  EXPECT_EQ(GroupsOf(mesh, {.axes = kPipelineAxis, .channel = Channel::kGradients, .from = 1, .to = 0}),
            (Groups{{4, 0}, {5, 1}, {6, 2}, {7, 3}}));
}

TEST(Mesh, Groups) {
  const Mesh mesh{.pipeline = 2, .replica = 2, .shard = 2};
  const std::vector<GroupSpec> groups = CommonGroups();
  ASSERT_EQ(groups.size(), static_cast<size_t>(kGroups));
  struct Case {
    GroupSpec group;
    std::string name;
    uint32_t rank;
    std::vector<uint32_t> members;
  };
  const GroupSpec down{.axes = kPipelineAxis, .channel = Channel::kActivations, .from = 0, .to = 1},
      up{.axes = kPipelineAxis, .channel = Channel::kGradients, .from = 1, .to = 0};
  const std::vector<Case> cases = {
      {groups[kWorldGroup], "world", 5, {0, 1, 2, 3, 4, 5, 6, 7}},
      {groups[kShardGroup], "shards", 5, {4, 5}},
      {groups[kReplicaGroup], "replicas", 5, {5, 7}},
      {groups[kExchangeGroup], "exchange", 5, {4, 5, 6, 7}},
      {groups[kModelGroup], "model", 5, {0, 1, 4, 5}},
      {down, "stage 0 to 1", 5, {1, 5}},
      {up, "stage 1 to 0, gradients", 1, {5, 1}},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(Print(test.group), test.name);
    EXPECT_EQ(MembersOf(mesh, test.group, test.rank), test.members) << test.name;
    const std::optional<Membership> own = MembershipOf(mesh, test.group, test.rank);
    ASSERT_TRUE(own.has_value());
    EXPECT_EQ(own->size, test.members.size()) << test.name;
    EXPECT_EQ(own->first, test.members[0]) << test.name;
    EXPECT_EQ(test.members[own->index], test.rank) << test.name;
  }
  EXPECT_EQ(MembershipOf({.pipeline = 3}, down, 2), std::nullopt);
}

// 2 stages of 2 replicas of 2 shards that 2 ranks compute together; 2 neighbors of the 4 with tokens of their own share
// samples.
TEST(Mesh, ContextRanksAreNeighborsOfTheDataRanks) {
  const Mesh mesh{.pipeline = 2, .replica = 2, .shard = 2, .tensor = 2, .context = 2};
  EXPECT_EQ(mesh.ranks(), 16u);
  EXPECT_EQ(mesh.data_ranks(), 4u);
  EXPECT_EQ(mesh.sample_ranks(), 2u);
  const uint32_t samples[] = {0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1},
                 contexts[] = {0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1};
  for (uint32_t rank = 0; rank < 16; ++rank) {
    EXPECT_EQ(SampleRankAt(mesh, CoordinateOf(mesh, rank)), samples[rank]) << rank;
    EXPECT_EQ(ContextRankAt(mesh, CoordinateOf(mesh, rank)), contexts[rank]) << rank;
  }
  EXPECT_EQ(Print(mesh, CoordinateOf(mesh, 13)), "stage 1, replica 1, shard 0, context 0, tensor 1");
  EXPECT_EQ(Print({.replica = 4, .context = 2}, {.replica = 3}), "replica 3, context 1");

  using Groups = std::vector<std::vector<uint32_t>>;
  const GroupSpec context = CommonGroups()[kContextGroup], both = CommonGroups()[kContextTensorGroup];
  EXPECT_EQ(GroupsOf(mesh, context), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8, 10}, {9, 11}, {12, 14}, {13, 15}}));
  EXPECT_EQ(GroupsOf(mesh, both), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9, 10, 11}, {12, 13, 14, 15}}));
  EXPECT_EQ(MembershipOf(mesh, context, 11), (Membership{.index = 1, .size = 2, .first = 9}));
  EXPECT_EQ(MembershipOf(mesh, both, 11), (Membership{.index = 3, .size = 4, .first = 8}));
  EXPECT_EQ(Print(context), "context");
  EXPECT_EQ(Print(both), "context and tensor");
  // As many as there are: over shards and replicas.
  Mesh four = mesh;
  four.context = 4;
  EXPECT_EQ(GroupsOf(four, context), (Groups{{0, 2, 4, 6}, {1, 3, 5, 7}, {8, 10, 12, 14}, {9, 11, 13, 15}}));
  EXPECT_EQ(SampleRankAt(four, CoordinateOf(four, 15)), 0u);
  EXPECT_EQ(ContextRankAt(four, CoordinateOf(four, 15)), 3u);
  // The last shard of one replica and the first one of the next.
  EXPECT_EQ(GroupsOf({.replica = 2, .shard = 3, .context = 2}, context), (Groups{{0, 1}, {2, 3}, {4, 5}}));
}

// On any mesh the groups of a kind divide the ranks.
TEST(Mesh, GroupsAreDisjointAndCoverAllRanks) {
  for (const Mesh mesh :
       {Mesh{}, Mesh{.replica = 3}, Mesh{.shard = 4}, Mesh{.replica = 2, .shard = 3},
        Mesh{.pipeline = 3, .replica = 2, .shard = 2, .tensor = 2},
        Mesh{.pipeline = 2, .replica = 2, .shard = 3, .tensor = 2, .context = 3}, Mesh{.replica = 4, .context = 2}}) {
    for (const GroupSpec& group : CommonGroups()) {
      std::set<uint32_t> seen;
      for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
        const std::vector<uint32_t> members = MembersOf(mesh, group, rank);
        if (members[0] != rank) continue;
        for (const uint32_t member : members) {
          EXPECT_TRUE(seen.insert(member).second);
          EXPECT_EQ(MembersOf(mesh, group, member), members);
        }
      }
      EXPECT_EQ(seen.size(), mesh.ranks());
    }
  }
}

// Six shards on two nodes of three; two replicas of two shards on nodes of two; four replicas of two shards on nodes of
// four, where a node has two replicas; four ranks a node that compute two units together.
TEST(Mesh, LevelsAreNodesAndTheRanksOfOnePlaceInThem) {
  using Members = std::vector<uint32_t>;
  struct Case {
    Mesh mesh;
    uint32_t on_node, rank;
    std::vector<std::pair<std::string, Members>> groups;
  };
  const std::vector<Case> cases = {
      {{.shard = 6}, 3, 4, {{"shards of a node", {3, 4, 5}}, {"shards between nodes", {1, 4}}}},
      {{.replica = 2, .shard = 2}, 2, 1, {}},
      {{.replica = 4, .shard = 2},
       4,
       6,
       {{"replicas of a node", {4, 6}}, {"replicas between nodes", {2, 6}}, {"replicas of a node, sums", {4, 6}}}},
      {{.replica = 2, .shard = 4}, 2, 5, {{"shards of a node", {4, 5}}, {"shards between nodes", {5, 7}}}},
      {{.shard = 4, .tensor = 2}, 4, 3, {{"shards of a node", {1, 3}}, {"shards between nodes", {3, 7}}}},
      {{.pipeline = 2, .shard = 4}, 2, 6, {{"shards of a node", {6, 7}}, {"shards between nodes", {4, 6}}}},
      {{.shard = 6}, 4, 0, {}},                 // nodes that fill no whole part of the axis
      {{.pipeline = 2, .shard = 2}, 4, 0, {}},  // a node has more than a stage
      {{.shard = 4}, 4, 0, {}},
      {{.shard = 4}, 1, 0, {}},
      {{.shard = 4, .tensor = 2}, 3, 0, {}},
  };
  for (const Case& test : cases) {
    const Mesh mesh = WithLevels(test.mesh, test.on_node);
    std::vector<std::pair<std::string, Members>> groups;
    for (const GroupSpec& group : LevelGroups(mesh))
      groups.emplace_back(Print(group), MembersOf(mesh, group, test.rank));
    EXPECT_EQ(groups, test.groups);
    for (const GroupSpec& group : CommonGroups()) {
      EXPECT_EQ(MembersOf(mesh, group, test.rank), MembersOf(test.mesh, group, test.rank)) << Print(group);
    }
  }
}

TEST(Mesh, WhatGoesBackInANodeHasACommunicatorOfItsOwn) {
  const Mesh mesh = WithLevels({.replica = 4}, 2);
  const std::vector<GroupSpec> levels = LevelGroups(mesh);
  ASSERT_EQ(levels.size(), 3u);
  EXPECT_FALSE(ShareMembers(mesh, levels[0], levels[2])) << "its collectives come between those of the next bucket";
  EXPECT_FALSE(ShareMembers(mesh, levels[0], levels[1]));
  EXPECT_FALSE(ShareMembers(mesh, levels[1], CommonGroups()[kReplicaGroup]));
}

TEST(Mesh, KindsWithTheSameMembersShareACommunicator) {
  const std::vector<GroupSpec> groups = CommonGroups();
  const auto shared = [&](const Mesh& mesh, int32_t a, int32_t b) { return ShareMembers(mesh, groups[a], groups[b]); };
  EXPECT_TRUE(shared({.shard = 4}, kWorldGroup, kShardGroup));
  EXPECT_TRUE(shared({.shard = 4}, kWorldGroup, kModelGroup));
  EXPECT_FALSE(shared({.shard = 4}, kWorldGroup, kReplicaGroup));
  EXPECT_TRUE(shared({.replica = 4}, kWorldGroup, kReplicaGroup));
  EXPECT_FALSE(shared({.replica = 2, .shard = 2}, kWorldGroup, kShardGroup));
  EXPECT_TRUE(shared({.replica = 2, .shard = 2}, kShardGroup, kModelGroup));
  EXPECT_FALSE(shared({.pipeline = 2, .shard = 2}, kShardGroup, kModelGroup));
  EXPECT_FALSE(shared({.shard = 4}, kWorldGroup, kExchangeGroup)) << "its collectives come between others'";
  EXPECT_FALSE(shared({.shard = 4, .context = 4}, kShardGroup, kContextGroup)) << "likewise";
  EXPECT_FALSE(shared({.shard = 2, .tensor = 2, .context = 2}, kTensorGroup, kContextGroup));
}

}  // namespace
}  // namespace muster
