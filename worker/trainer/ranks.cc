#include "worker/trainer/ranks.h"

#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "worker/collectives/gloo.h"

#ifdef MUSTER_CUDA
#include "worker/collectives/nccl.h"
#endif

namespace muster::trainer {
namespace {

constexpr absl::Duration kDefaultDeadline = absl::Minutes(15);  // if the coordinator sends none

struct Membership {
  std::string name;   // unique in the generation
  uint32_t rank = 0;  // in the group
  uint32_t size = 1;
  uint32_t first = 0;  // the world's number of the group's rank 0
  uint32_t color = 0;  // its number among the groups that are split off the world together
};

// Both kinds of options have these fields.
template <typename Options>
Options MakeOptions(const Assignment& assignment, const Membership& membership) {
  Options options;
  options.rank = static_cast<int>(membership.rank);
  options.size = static_cast<int>(membership.size);
  options.name = membership.name;
  options.host = assignment.host().empty() ? "127.0.0.1" : assignment.host();
  options.timeout = CollectiveDeadline(assignment);
  options.join_timeout = options.timeout;
  return options;
}

// `world`: the group of all ranks, null if that is the one to be made.
absl::StatusOr<std::unique_ptr<collectives::Group>> Make(const Assignment& assignment, const Membership& membership,
                                                         collectives::Group* world, collectives::KeyValue& rendezvous) {
#ifdef MUSTER_CUDA
  if (assignment.device() == DEVICE_CUDA) {
    const auto options = MakeOptions<collectives::NcclOptions>(assignment, membership);
    if (world == nullptr) return collectives::MakeNccl(options, rendezvous);
    return collectives::SplitNccl(dynamic_cast<collectives::DeviceGroup&>(*world), static_cast<int>(membership.color),
                                  options, rendezvous);
  }
#endif
  (void)world;
  return collectives::MakeGloo(MakeOptions<collectives::GlooOptions>(assignment, membership), rendezvous);
}

// After the group was joined, so its rank 0 has set its digest or is about to.
absl::Status CheckDigest(const Assignment& assignment, const Membership& membership, int32_t group,
                         const std::string& digest, collectives::KeyValue& rendezvous) {
  const std::string name = absl::StrCat("collectives/", group, "/", membership.name);
  if (membership.rank == 0) return rendezvous.Set(name, digest);
  const absl::StatusOr<std::string> expected = rendezvous.Wait(name, CollectiveDeadline(assignment));
  if (!expected.ok()) return expected.status();
  if (*expected == digest) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("rank ", assignment.key().rank(), " would issue other collectives in the group ", membership.name,
                   " than rank ", membership.first, ": two different builds; install the same release on all workers"));
}

}  // namespace

absl::Duration CollectiveDeadline(const Assignment& assignment) {
  const absl::Duration deadline = FromProto(assignment.collective_deadline());
  return deadline > absl::ZeroDuration() ? deadline : kDefaultDeadline;
}

absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, uint32_t shards, const GroupDigests& digests,
                                collectives::KeyValue& rendezvous) {
  Ranks ranks;
  const uint32_t world = assignment.world(), rank = assignment.key().rank();
  if (world <= 1) return ranks;
  const auto begin = std::chrono::steady_clock::now();
  // `groups`: the numbers under which ops know it.
  const auto join = [&](const std::vector<int32_t>& groups, const Membership& membership) -> absl::Status {
    auto made = Make(assignment, membership, ranks.groups[kWorldGroup], rendezvous);
    if (!made.ok()) return made.status();
    for (const int32_t group : groups) {
      ranks.groups[group] = made->get();
      absl::Status same = CheckDigest(assignment, membership, group, digests[group], rendezvous);
      if (!same.ok()) return same;
    }
    ranks.owned.push_back(*std::move(made));
    return absl::OkStatus();
  };
  std::vector<int32_t> whole = {kWorldGroup};
  if (shards == world) whole.push_back(kShardGroup);
  if (shards == 1) whole.push_back(kReplicaGroup);
  if (absl::Status s = join(whole, {"world", rank, world}); !s.ok()) return s;
  if (shards > 1 && shards < world) {
    const uint32_t shard = rank % shards, replica = rank / shards;
    const Membership one{absl::StrCat("shards-", replica), shard, shards, replica * shards, replica};
    if (absl::Status s = join({kShardGroup}, one); !s.ok()) return s;
    const Membership replicas{absl::StrCat("replicas-", shard), replica, world / shards, shard, shard};
    if (absl::Status s = join({kReplicaGroup}, replicas); !s.ok()) return s;
  }
  if (!digests[kExchangeGroup].empty()) {
    if (absl::Status s = join({kExchangeGroup}, {"exchange", rank, world}); !s.ok()) return s;
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  LogInfo("process groups joined", {{"world", world}, {"took", absl::Trunc(took, absl::Milliseconds(1))}});
  return ranks;
}

}  // namespace muster::trainer
