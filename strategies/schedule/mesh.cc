#include "strategies/schedule/mesh.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

// The axes of more than one rank.
Axes LongAxes(const Mesh& mesh) {
  return static_cast<Axes>((mesh.pipeline > 1 ? kPipelineAxis : 0) | (mesh.replicas_inside > 1 ? kReplicasInside : 0) |
                           (mesh.replica > mesh.replicas_inside ? kReplicasBetween : 0) |
                           (mesh.shards_inside > 1 ? kShardsInside : 0) |
                           (mesh.shard > mesh.shards_inside ? kShardsBetween : 0) |
                           (mesh.tensor > 1 ? kTensorAxis : 0) | (mesh.context > 1 ? kContextAxis : 0));
}

// Coordinates along an axis.
struct Along {
  uint32_t begin, end, step;
};
Along AlongAxis(Axes axes, Axes inside, Axes between, uint32_t own, uint32_t size, uint32_t size_inside) {
  const uint32_t place = NodePlaceOf(own, size_inside).place, first = own - place;  // of the node
  if ((axes & inside) != 0 && (axes & between) != 0) return {0, size, 1};
  if ((axes & inside) != 0) return {first, first + size_inside, 1};
  if ((axes & between) != 0) return {place, size, size_inside};
  return {own, own + 1, 1};
}

// The ranks of the group in their order; of an edge, of its two stages.
template <typename Visit>
void EachMember(const Mesh& mesh, const GroupSpec& group, const Coordinate& at, const Visit& visit) {
  const auto [p_begin, p_end, p_step] =
      AlongAxis(group.axes, kPipelineAxis, kPipelineAxis, at.pipeline, mesh.pipeline, 1);
  const auto [t_begin, t_end, t_step] = AlongAxis(group.axes, kTensorAxis, kTensorAxis, at.tensor, mesh.tensor, 1);
  const auto [r_begin, r_end, r_step] =
      AlongAxis(group.axes, kReplicasInside, kReplicasBetween, at.replica, mesh.replica, mesh.replicas_inside);
  const auto [s_begin, s_end, s_step] =
      AlongAxis(group.axes, kShardsInside, kShardsBetween, at.shard, mesh.shard, mesh.shards_inside);
  if ((group.axes & kContextAxis) != 0) {
    const uint32_t first = DataRankAt(mesh, at) - ContextRankAt(mesh, at);
    for (uint32_t p = p_begin; p < p_end; p += p_step) {
      for (uint32_t data = first; data < first + mesh.context; ++data) {
        for (uint32_t t = t_begin; t < t_end; t += t_step) {
          visit(Coordinate{p, data / mesh.shard, data % mesh.shard, t});
        }
      }
    }
    return;
  }
  for (uint32_t p = p_begin; p < p_end; p += p_step) {
    for (uint32_t r = r_begin; r < r_end; r += r_step) {
      for (uint32_t s = s_begin; s < s_end; s += s_step) {
        for (uint32_t t = t_begin; t < t_end; t += t_step) visit(Coordinate{p, r, s, t});
      }
    }
  }
}

}  // namespace

Coordinate CoordinateOf(const Mesh& mesh, uint32_t rank) {
  return {.pipeline = rank / (mesh.replica * mesh.shard * mesh.tensor),
          .replica = rank / (mesh.shard * mesh.tensor) % mesh.replica,
          .shard = rank / mesh.tensor % mesh.shard,
          .tensor = rank % mesh.tensor};
}

uint32_t RankAt(const Mesh& mesh, const Coordinate& at) {
  return ((at.pipeline * mesh.replica + at.replica) * mesh.shard + at.shard) * mesh.tensor + at.tensor;
}

uint32_t OwnerAt(const Mesh& mesh, const Coordinate& at) {
  return (at.pipeline * mesh.shard + at.shard) * mesh.tensor + at.tensor;
}

Coordinate CoordinateOfOwner(const Mesh& mesh, uint32_t owner) {
  return {.pipeline = owner / mesh.owners_of_stage(),
          .shard = owner / mesh.tensor % mesh.shard,
          .tensor = owner % mesh.tensor};
}

uint32_t FileAt(const Mesh& mesh, const Coordinate& at) { return at.replica * mesh.owners() + OwnerAt(mesh, at); }

uint32_t PartAt(const Mesh& mesh, const Coordinate& at) { return at.pipeline * mesh.tensor + at.tensor; }

Mesh WithReplicasFor(Mesh mesh, uint32_t ranks) {
  mesh.replica = std::max(1u, ranks / mesh.pipeline / mesh.shard / mesh.tensor);
  return mesh;
}

Mesh WithShardsFor(Mesh mesh, uint32_t ranks) {
  mesh.shard = std::max(1u, ranks / mesh.pipeline / mesh.replica / mesh.tensor);
  return mesh;
}

NodePlace NodePlaceOf(uint32_t place, uint32_t inside) { return {.node = place / inside, .place = place % inside}; }

NodePart NodePartOf(int64_t elements, uint32_t inside, uint32_t place) {
  constexpr int64_t kVector = 16;
  const int64_t vectors = (elements + kVector - 1) / kVector;
  const auto at = [&](int64_t part) { return std::min(elements, vectors * part / inside * kVector); };
  return {at(place), at(int64_t{place} + 1)};
}

Mesh WithLevels(Mesh mesh, uint32_t ranks_on_node) {
  mesh.replicas_inside = mesh.shards_inside = 1;
  const uint32_t on_node = ranks_on_node / mesh.tensor, data = mesh.data_ranks();  // with samples of their own
  if (ranks_on_node % mesh.tensor != 0 || on_node <= 1 || data % on_node != 0) return mesh;
  if (mesh.shard % on_node == 0) {
    mesh.shards_inside = on_node;
  } else if (on_node % mesh.shard == 0) {
    mesh.shards_inside = mesh.shard, mesh.replicas_inside = on_node / mesh.shard;
  }
  return mesh;
}

uint32_t DataRankAt(const Mesh& mesh, const Coordinate& at) { return at.replica * mesh.shard + at.shard; }

uint32_t SampleRankAt(const Mesh& mesh, const Coordinate& at) { return DataRankAt(mesh, at) / mesh.context; }

uint32_t ContextRankAt(const Mesh& mesh, const Coordinate& at) { return DataRankAt(mesh, at) % mesh.context; }

std::string Print(const Mesh& mesh, const Coordinate& at) {
  std::vector<std::string> axes;
  if (mesh.pipeline > 1) axes.push_back(absl::StrCat("stage ", at.pipeline));
  if (mesh.replica > 1) axes.push_back(absl::StrCat("replica ", at.replica));
  if (mesh.shard > 1) axes.push_back(absl::StrCat("shard ", at.shard));
  if (mesh.context > 1) axes.push_back(absl::StrCat("context ", ContextRankAt(mesh, at)));
  if (mesh.tensor > 1) axes.push_back(absl::StrCat("tensor ", at.tensor));
  return absl::StrJoin(axes, ", ");
}

namespace {

const char* WhatFlows(Channel channel) {
  switch (channel) {
    case Channel::kGradients:
      return ", gradients";
    case Channel::kTied:
      return ", tied tensors";
    case Channel::kTiedGradients:
      return ", gradients of tied tensors";
    default:
      return "";
  }
}

}  // namespace

std::string Print(const GroupSpec& group) {
  if (group.is_edge()) return absl::StrCat("stage ", group.from, " to ", group.to, WhatFlows(group.channel));
  if (group.channel == Channel::kExchange) return "exchange";
  if (group.channel == Channel::kTensor) return "tensor";
  if (group.channel == Channel::kContext) return group.axes == kContextAxis ? "context" : "context and tensor";
  if (group.channel == Channel::kSums) return "replicas of a node, sums";
  switch (group.axes) {
    case kAllAxes:
      return "world";
    case kShardAxis:
      return "shards";
    case kReplicaAxis:
      return "replicas";
    case kModelAxes:
      return "model";
    case kShardsInside:
      return "shards of a node";
    case kShardsBetween:
      return "shards between nodes";
    case kReplicasInside:
      return "replicas of a node";
    case kReplicasBetween:
      return "replicas between nodes";
    default:
      return absl::StrCat("axes ", static_cast<int>(group.axes));
  }
}

std::vector<GroupSpec> CommonGroups() {
  return {{.axes = kAllAxes},
          {.axes = kShardAxis},
          {.axes = kReplicaAxis},
          {.axes = kDataAxes, .channel = Channel::kExchange},
          {.axes = kModelAxes},
          {.axes = kTensorAxis, .channel = Channel::kTensor},
          {.axes = kContextAxis, .channel = Channel::kContext},
          {.axes = static_cast<Axes>(kContextAxis | kTensorAxis), .channel = Channel::kContext}};
}

std::vector<GroupSpec> LevelGroups(const Mesh& mesh) {
  std::vector<GroupSpec> groups;
  if (mesh.shard_levels()) groups = {{.axes = kShardsInside}, {.axes = kShardsBetween}};
  if (mesh.replica_levels()) {
    groups.push_back({.axes = kReplicasInside});
    groups.push_back({.axes = kReplicasBetween});
    groups.push_back({.axes = kReplicasInside, .channel = Channel::kSums});
  }
  return groups;
}

std::optional<Membership> MembershipOf(const Mesh& mesh, const GroupSpec& group, uint32_t rank) {
  const Coordinate at = CoordinateOf(mesh, rank);
  if (group.is_edge()) {
    const auto stage = static_cast<int32_t>(at.pipeline);
    if (stage != group.from && stage != group.to) return std::nullopt;
    Coordinate sender = at;
    sender.pipeline = static_cast<uint32_t>(group.from);
    return Membership{.index = stage == group.from ? 0u : 1u, .size = 2, .first = RankAt(mesh, sender)};
  }
  Membership membership{.size = 0};
  EachMember(mesh, group, at, [&](const Coordinate& member) {
    if (membership.size == 0) membership.first = RankAt(mesh, member);
    if (member == at) membership.index = membership.size;
    ++membership.size;
  });
  return membership;
}

std::vector<uint32_t> MembersOf(const Mesh& mesh, const GroupSpec& group, uint32_t rank) {
  Coordinate at = CoordinateOf(mesh, rank);
  std::vector<uint32_t> ranks;
  if (!group.is_edge()) {
    EachMember(mesh, group, at, [&](const Coordinate& member) { ranks.push_back(RankAt(mesh, member)); });
    return ranks;
  }
  for (const int32_t stage : {group.from, group.to}) {
    at.pipeline = static_cast<uint32_t>(stage);
    ranks.push_back(RankAt(mesh, at));
  }
  return ranks;
}

std::vector<std::vector<uint32_t>> GroupsOf(const Mesh& mesh, const GroupSpec& group) {
  std::vector<std::vector<uint32_t>> groups;
  std::vector<bool> listed(mesh.ranks());
  for (uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const auto stage = static_cast<int32_t>(CoordinateOf(mesh, rank).pipeline);
    if (listed[rank] || (group.is_edge() && stage != group.from)) continue;
    for (const uint32_t member : groups.emplace_back(MembersOf(mesh, group, rank))) listed[member] = true;
  }
  return groups;
}

bool ShareMembers(const Mesh& mesh, const GroupSpec& a, const GroupSpec& b) {
  if (a.channel != b.channel || a.is_edge() || b.is_edge()) return a == b;
  const Axes longer = LongAxes(mesh);
  return (a.axes & longer) == (b.axes & longer);
}

}  // namespace muster
