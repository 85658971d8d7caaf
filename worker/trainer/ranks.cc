#include "worker/trainer/ranks.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "strategies/pipeline/stages.h"
#include "strategies/schedule/check.h"
#include "worker/collectives/gloo.h"
#include "worker/engine/mesh_groups.h"

#ifdef MUSTER_CUDA
#include "worker/collectives/nccl.h"
#endif

namespace muster::trainer {
namespace {

constexpr absl::Duration kDefaultDeadline = absl::Minutes(15);  // if the coordinator sends none

// Both kinds of options have these fields.
template <typename Options>
Options MakeOptions(const Assignment& assignment, const Mesh& mesh, const GroupSpec& group,
                    const Membership& membership) {
  Options options;
  options.rank = static_cast<int>(membership.index);
  options.size = static_cast<int>(membership.size);
  options.name = engine::NameOf(group, membership);
  options.host = assignment.host().empty() ? "127.0.0.1" : assignment.host();
  options.timeout = CollectiveDeadline(assignment, mesh, group);
  options.join_timeout = CollectiveDeadline(assignment);
  return options;
}

// `world`: the group of all ranks, null if that is the one to be made. `membership`: none if the rank takes no part;
// all ranks take part in a split of the world's communicator.
absl::StatusOr<std::unique_ptr<collectives::Group>> Make(const Assignment& assignment, const Mesh& mesh,
                                                         const GroupSpec& group,
                                                         const std::optional<Membership>& membership,
                                                         collectives::Group* world, collectives::KeyValue& rendezvous) {
#ifdef MUSTER_CUDA
  if (assignment.device() == DEVICE_CUDA) {
    const auto options =
        MakeOptions<collectives::NcclOptions>(assignment, mesh, group, membership.value_or(Membership{}));
    if (world == nullptr) return collectives::MakeNccl(options, rendezvous);
    const int color = membership.has_value() ? static_cast<int>(membership->first) : collectives::kNoColor;
    return collectives::SplitNccl(dynamic_cast<collectives::DeviceGroup&>(*world), color, options, rendezvous);
  }
#endif
  (void)world;
  if (!membership.has_value()) return nullptr;
  return collectives::MakeGloo(MakeOptions<collectives::GlooOptions>(assignment, mesh, group, *membership), rendezvous);
}

// After the group was joined, so its rank 0 has set its digest or is about to.
absl::Status CheckDigest(const Assignment& assignment, const Membership& membership, const GroupToJoin& group,
                         collectives::KeyValue& rendezvous) {
  const std::string name = engine::NameOf(group.spec, membership);
  const std::string key = absl::StrCat("collectives/", group.number, "/", name);
  if (membership.index == 0) return rendezvous.Set(key, group.digest);
  const absl::StatusOr<std::string> expected = rendezvous.Wait(key, CollectiveDeadline(assignment));
  if (!expected.ok()) return expected.status();
  if (*expected == group.digest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", assignment.key().rank(), " would issue other collectives in the group ", name,
                   " than rank ", membership.first, ": two different builds; install the same release on all workers"));
}

}  // namespace

absl::Duration CollectiveDeadline(const Assignment& assignment) {
  const absl::Duration deadline = FromProto(assignment.collective_deadline());
  return deadline > absl::ZeroDuration() ? deadline : kDefaultDeadline;
}

absl::Duration CollectiveDeadline(const Assignment& assignment, const Mesh& mesh, const GroupSpec& group) {
  const absl::Duration otherwise = CollectiveDeadline(assignment);
  const AxisTimeouts& set = assignment.spec().train().communication().timeout_seconds();
  absl::Duration longest = absl::ZeroDuration();
  const auto consider = [&](bool along, bool is_set, double seconds) {
    if (along) longest = std::max(longest, is_set ? absl::Seconds(seconds) : otherwise);
  };
  const auto has = [&](Axes axis, uint32_t ranks) { return ranks > 1 && (group.axes & axis) != 0; };
  consider(has(kPipelineAxis, mesh.pipeline), set.has_pipeline(), set.pipeline());
  // Ranks that share samples are neighbors along the axes of data.
  const bool shares = has(kContextAxis, mesh.context), sharers = shares && !set.has_context();
  consider(shares && set.has_context(), true, set.context());
  const bool replicas = has(kReplicaAxis, mesh.replica) || (sharers && mesh.shard % mesh.context != 0);
  const bool shards = has(kShardAxis, mesh.shard) || (sharers && mesh.shard > 1);
  consider(replicas, set.has_replica(), set.replica());
  consider(shards, set.has_shard(), set.shard());
  consider(has(kTensorAxis, mesh.tensor), set.has_tensor(), set.tensor());
  return longest > absl::ZeroDuration() ? longest : otherwise;
}

std::vector<GroupToJoin> GroupsToJoin(const Inventory& inventory, const strategies::Layout& layout,
                                      const strategies::RankProgram& program) {
  const std::vector<GroupSpec>& own = program.schedule.groups;
  std::vector<GroupToJoin> groups;
  const bool exchanges = std::any_of(inventory.units().begin(), inventory.units().end(),
                                     [](const Unit& unit) { return unit.has_exchange(); });
  const auto digest = [&](int32_t number) {
    return absl::StrCat(CollectivesDigest(program.schedule, number), CollectivesDigest(program.evaluation, number));
  };
  for (int32_t number = 0; number < kGroups; ++number) {
    if ((number == kExchangeGroup && !exchanges) || number == kContextTensorGroup) continue;
    groups.push_back({own[static_cast<size_t>(number)], digest(number), number});
  }
  for (const GroupSpec& edge : pipeline::Edges(inventory, pipeline::StagesOf(layout.table))) {
    const auto found = std::find(own.begin(), own.end(), edge);
    groups.push_back({edge, "", found == own.end() ? -1 : static_cast<int32_t>(found - own.begin())});
  }
  for (const GroupSpec& level : LevelGroups(layout.mesh)) {
    const auto number = static_cast<int32_t>(std::find(own.begin(), own.end(), level) - own.begin());
    groups.push_back({level, digest(number), number});
  }
  return groups;
}

absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, const Mesh& mesh, const std::vector<GroupToJoin>& groups,
                                collectives::KeyValue& rendezvous) {
  Ranks ranks;
  if (mesh.ranks() <= 1) return ranks;
  const uint32_t rank = assignment.key().rank();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::pair<GroupSpec, collectives::Group*>> made;
  for (const GroupToJoin& group : groups) {
    const std::optional<Membership> own = MembershipOf(mesh, group.spec, rank);
    if (own.has_value() && own->size == 1) continue;
    collectives::Group* joined = nullptr;
    for (const auto& [spec, other] : made) {
      if (ShareMembers(mesh, spec, group.spec)) joined = other;
    }
    if (joined == nullptr) {
      auto one = Make(assignment, mesh, group.spec, own, ranks.groups[kWorldGroup], rendezvous);
      if (!one.ok()) return one.status();
      joined = one->get();
      if (joined != nullptr) ranks.owned.push_back(*std::move(one));
    }
    if (group.number < 0 || joined == nullptr) continue;
    made.emplace_back(group.spec, joined);
    ranks.groups.resize(std::max(ranks.groups.size(), static_cast<size_t>(group.number) + 1));
    ranks.groups[static_cast<size_t>(group.number)] = joined;
    if (group.spec.is_edge()) {
      // In the order of all edges, so that no two ranks wait for each other; a step's first message then does not wait.
      const c10::Device device(assignment.device() == DEVICE_CUDA ? c10::kCUDA : c10::kCPU);
      if (absl::Status s = collectives::Connect(*joined, /*from=*/0, /*to=*/1, device); !s.ok()) return s;
    }
    if (group.digest.empty()) continue;
    if (absl::Status s = CheckDigest(assignment, *own, group, rendezvous); !s.ok()) return s;
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  LogInfo("process groups joined", {{"world", mesh.ranks()}, {"took", absl::Trunc(took, absl::Milliseconds(1))}});
  return ranks;
}

}  // namespace muster::trainer
