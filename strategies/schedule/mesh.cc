#include "strategies/schedule/mesh.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

// The axes of more than one rank.
Axes LongAxes(const Mesh& mesh) {
  return static_cast<Axes>((mesh.pipeline > 1 ? kPipelineAxis : 0) | (mesh.replica > 1 ? kReplicaAxis : 0) |
                           (mesh.shard > 1 ? kShardAxis : 0) | (mesh.tensor > 1 ? kTensorAxis : 0));
}

// The ranks of the group in their order; of an edge, of its two stages.
template <typename Visit>
void EachMember(const Mesh& mesh, const GroupSpec& group, const Coordinate& at, const Visit& visit) {
  const auto along = [&](Axes axis, uint32_t own, uint32_t size) {
    return (group.axes & axis) != 0 ? std::pair(0u, size) : std::pair(own, own + 1);
  };
  const auto [p_begin, p_end] = along(kPipelineAxis, at.pipeline, mesh.pipeline);
  const auto [r_begin, r_end] = along(kReplicaAxis, at.replica, mesh.replica);
  const auto [s_begin, s_end] = along(kShardAxis, at.shard, mesh.shard);
  const auto [t_begin, t_end] = along(kTensorAxis, at.tensor, mesh.tensor);
  for (uint32_t p = p_begin; p < p_end; ++p) {
    for (uint32_t r = r_begin; r < r_end; ++r) {
      for (uint32_t s = s_begin; s < s_end; ++s) {
        for (uint32_t t = t_begin; t < t_end; ++t) visit(Coordinate{p, r, s, t});
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

uint32_t DataRankAt(const Mesh& mesh, const Coordinate& at) { return at.replica * mesh.shard + at.shard; }

std::string Print(const Mesh& mesh, const Coordinate& at) {
  std::vector<std::string> axes;
  if (mesh.pipeline > 1) axes.push_back(absl::StrCat("stage ", at.pipeline));
  if (mesh.replica > 1) axes.push_back(absl::StrCat("replica ", at.replica));
  if (mesh.shard > 1) axes.push_back(absl::StrCat("shard ", at.shard));
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
  switch (group.axes) {
    case kAllAxes:
      return "world";
    case kShardAxis:
      return "shards";
    case kReplicaAxis:
      return "replicas";
    case kModelAxes:
      return "model";
    default:
      return absl::StrCat("axes ", static_cast<int>(group.axes));
  }
}

std::vector<GroupSpec> CommonGroups() {
  return {{.axes = kAllAxes},     {.axes = kShardAxis},
          {.axes = kReplicaAxis}, {.axes = kDataAxes, .channel = Channel::kExchange},
          {.axes = kModelAxes},   {.axes = kTensorAxis, .channel = Channel::kTensor}};
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

bool ShareMembers(const Mesh& mesh, const GroupSpec& a, const GroupSpec& b) {
  if (a.channel != b.channel || a.is_edge() || b.is_edge()) return a == b;
  const Axes longer = LongAxes(mesh);
  return (a.axes & longer) == (b.axes & longer);
}

}  // namespace muster
