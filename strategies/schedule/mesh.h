// Where ranks are in the mesh of a generation, and the process groups along its axes: the only arithmetic on ranks.
// Pure.
//
//   const Mesh mesh{.pipeline = 2, .replica = 1, .shard = 4};  // 8 ranks
//   const Coordinate at = CoordinateOf(mesh, 5);               // stage 1, shard 1
//   MembershipOf(mesh, CommonGroups()[kShardGroup], 5)->size;  // 4
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace muster {

// Ranks per axis. Ranks of neighboring numbers differ in the last axis first, so those that exchange most are close:
// rank = ((pipeline * R + replica) * S + shard) * T + tensor.
struct Mesh {
  uint32_t pipeline = 1;  // stages, each with some of the model's units
  uint32_t replica = 1;   // copies of the sharded state
  uint32_t shard = 1;     // ranks that share one copy
  uint32_t tensor = 1;    // ranks that share the computing of each unit
  // Data ranks with neighboring numbers (DataRankAt) that share samples, each with a part of every sequence; divides
  // data_ranks().
  uint32_t context = 1;
  // Of the data axes: so many neighboring coordinates, which divide the axis, lie on one node. 1 or the whole axis: its
  // groups have one level.
  uint32_t replicas_inside = 1, shards_inside = 1;

  bool replica_levels() const { return replicas_inside > 1 && replicas_inside < replica; }
  bool shard_levels() const { return shards_inside > 1 && shards_inside < shard; }
  uint32_t replicas_between() const { return replica / replicas_inside; }
  uint32_t shards_between() const { return shard / shards_inside; }
  uint32_t ranks() const { return pipeline * ranks_of_stage(); }
  uint32_t ranks_of_stage() const { return replica * shard * tensor; }
  // Ranks with tokens of their own: those of one stage and one tensor coordinate. Each `context` of them share samples.
  uint32_t data_ranks() const { return replica * shard; }
  uint32_t sample_ranks() const { return data_ranks() / context; }
  // Owners of state: the shards of a partition table. Those of a stage have neighboring numbers.
  uint32_t owners() const { return pipeline * owners_of_stage(); }
  uint32_t owners_of_stage() const { return shard * tensor; }
  // Parts of the model: the units of a stage, with the share of their tensors that one tensor coordinate has.
  uint32_t parts() const { return pipeline * tensor; }
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

struct Coordinate {
  uint32_t pipeline = 0, replica = 0, shard = 0, tensor = 0;
  friend bool operator==(const Coordinate&, const Coordinate&) = default;
};

// REQUIRES: a rank of the mesh.
Coordinate CoordinateOf(const Mesh& mesh, uint32_t rank);
uint32_t RankAt(const Mesh& mesh, const Coordinate& at);
// The rank's shard in the partition table, of mesh.owners().
uint32_t OwnerAt(const Mesh& mesh, const Coordinate& at);
// Of replica 0. A number that is none of the owners' has a stage that the mesh does not have.
Coordinate CoordinateOfOwner(const Mesh& mesh, uint32_t owner);
// The number of the file that the rank writes, where each replica writes its own: those of replica 0 are its owners.
uint32_t FileAt(const Mesh& mesh, const Coordinate& at);
// Its number among mesh.parts(): those of a stage are neighbors.
uint32_t PartAt(const Mesh& mesh, const Coordinate& at);
// Its number among mesh.data_ranks().
uint32_t DataRankAt(const Mesh& mesh, const Coordinate& at);
// Its number among mesh.sample_ranks(): which samples of a step are its own; and which of mesh.context parts of their
// sequences it has.
uint32_t SampleRankAt(const Mesh& mesh, const Coordinate& at);
uint32_t ContextRankAt(const Mesh& mesh, const Coordinate& at);
// "stage 1, replica 0, shard 3, context 1": the axes of more than one rank; "" on one rank.
std::string Print(const Mesh& mesh, const Coordinate& at);

// The mesh with so many replicas, or shards, that it has `ranks` ranks in all; at least 1. REQUIRES: the other axes
// divide `ranks`.
Mesh WithReplicasFor(Mesh mesh, uint32_t ranks);
Mesh WithShardsFor(Mesh mesh, uint32_t ranks);

// What `by_rank` has for the ranks of a stage, which are neighbors, in their order.
template <typename T>
absl::Span<const T> OfStage(const Mesh& mesh, absl::Span<const T> by_rank, uint32_t stage) {
  return by_rank.subspan(RankAt(mesh, {.pipeline = stage}), mesh.ranks_of_stage());
}

// A place of an axis that nodes divide, each with `inside` neighboring places of it, or a rank on nodes of `inside`
// ranks.
struct NodePlace {
  uint32_t node = 0;   // in the order of their places
  uint32_t place = 0;  // in the node, of `inside`
  friend bool operator==(const NodePlace&, const NodePlace&) = default;
};
// REQUIRES: inside > 0.
NodePlace NodePlaceOf(uint32_t place, uint32_t inside);

// The part of `elements`, which the `inside` ranks of a node sum up together, that one of them takes to other nodes:
// whole vectors of 64 bytes of fp32.
struct NodePart {
  int64_t begin = 0, end = 0;
  friend bool operator==(const NodePart&, const NodePart&) = default;
};
NodePart NodePartOf(int64_t elements, uint32_t inside, uint32_t place);

// Sets `replicas_inside` and `shards_inside` for nodes of `ranks_on_node` neighboring ranks each, as far as these fill
// whole parts of the axes; else they are 1.
Mesh WithLevels(Mesh mesh, uint32_t ranks_on_node);

// A set of axes. Those of data have a part inside nodes and one between them.
enum Axes : uint8_t {
  kNoAxis = 0,
  kPipelineAxis = 1,
  kReplicasInside = 2,
  kShardsInside = 4,
  kTensorAxis = 8,
  kReplicasBetween = 16,
  kShardsBetween = 32,
  kContextAxis = 64,  // of the data axes, the ranks that share samples
  kReplicaAxis = kReplicasInside | kReplicasBetween,
  kShardAxis = kShardsInside | kShardsBetween,
  kDataAxes = kReplicaAxis | kShardAxis,
  kModelAxes = kPipelineAxis | kShardAxis | kTensorAxis,
  kAllAxes = kDataAxes | kModelAxes,
};

// What a group is for. Two groups of the same ranks whose collectives are on different streams need a communicator
// each.
enum class Channel : uint8_t {
  kCollectives,
  kExchange,
  kActivations,
  kGradients,
  kTied,
  kTiedGradients,
  kTensor,
  kContext,
  kSums,  // of gradients, on their way back to the ranks of a node
};

// A kind of process group: for each rank the ranks that differ from it along these axes only. An edge of a pipeline has
// two stages only: `from` sends to `to`.
struct GroupSpec {
  Axes axes = kNoAxis;
  Channel channel = Channel::kCollectives;
  int32_t from = -1, to = -1;

  bool is_edge() const { return from >= 0; }
  friend bool operator==(const GroupSpec&, const GroupSpec&) = default;
};

// "world", "shards", "stage 0 to 1", "stage 1 to 0, gradients": different for each.
std::string Print(const GroupSpec& group);

// The numbers under which ops name the groups that every schedule lists (Op::group): all ranks; the ranks that share
// one copy of a stage's state; the ranks that hold the same shard; the ranks with samples of their own, for what units
// exchange inside their passes; the ranks that together hold one copy of the model; those that compute a unit together;
// those that share samples; and the ranks of both, for an op that exchanges with both: no collective is issued in it.
// A pipeline's edges come after them, then the groups of LevelGroups.
inline constexpr int32_t kWorldGroup = 0, kShardGroup = 1, kReplicaGroup = 2, kExchangeGroup = 3, kModelGroup = 4,
                         kTensorGroup = 5, kContextGroup = 6, kContextTensorGroup = 7;
inline constexpr int32_t kGroups = 8;

// Those, in the order of their numbers.
std::vector<GroupSpec> CommonGroups();

// Those of the axes that have two levels, if there are any: where shards have, the ranks of a node and those of equal
// places in their nodes; where replicas have, likewise, and those of a node once more, for what goes back to them.
std::vector<GroupSpec> LevelGroups(const Mesh& mesh);

// A rank's place in the group of a kind that it belongs to.
struct Membership {
  uint32_t index = 0;  // of `size` members, in the order of their ranks; of an edge: 0 sends, 1 receives
  uint32_t size = 1;
  uint32_t first = 0;  // the rank of member 0: different for the groups of one kind
  friend bool operator==(const Membership&, const Membership&) = default;
};
// None: an edge of other stages.
std::optional<Membership> MembershipOf(const Mesh& mesh, const GroupSpec& group, uint32_t rank);
// Its members' ranks, by their index.
std::vector<uint32_t> MembersOf(const Mesh& mesh, const GroupSpec& group, uint32_t rank);
// Those of each group of the kind, in the order of their members 0.
std::vector<std::vector<uint32_t>> GroupsOf(const Mesh& mesh, const GroupSpec& group);
// Whether the two kinds have the same members on this mesh and may share a communicator.
bool ShareMembers(const Mesh& mesh, const GroupSpec& a, const GroupSpec& b);

}  // namespace muster
