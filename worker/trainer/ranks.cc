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
  std::string name;
  uint32_t rank = 0;
  uint32_t size = 1;
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

absl::StatusOr<std::unique_ptr<collectives::Group>> Make(const Assignment& assignment, const Membership& membership,
                                                         collectives::KeyValue& rendezvous) {
#ifdef MUSTER_CUDA
  if (assignment.device() == DEVICE_CUDA) {
    return collectives::MakeNccl(MakeOptions<collectives::NcclOptions>(assignment, membership), rendezvous);
  }
#endif
  return collectives::MakeGloo(MakeOptions<collectives::GlooOptions>(assignment, membership), rendezvous);
}

}  // namespace

absl::Duration CollectiveDeadline(const Assignment& assignment) {
  const absl::Duration deadline = FromProto(assignment.collective_deadline());
  return deadline > absl::ZeroDuration() ? deadline : kDefaultDeadline;
}

absl::StatusOr<Ranks> JoinRanks(const Assignment& assignment, uint32_t shards, collectives::KeyValue& rendezvous) {
  Ranks ranks;
  const uint32_t world = assignment.world(), rank = assignment.key().rank();
  if (world <= 1) return ranks;
  const auto begin = std::chrono::steady_clock::now();
  const auto join = [&](int32_t group, const Membership& membership) -> absl::Status {
    auto made = Make(assignment, membership, rendezvous);
    if (!made.ok()) return made.status();
    ranks.groups[group] = made->get();
    ranks.owned.push_back(*std::move(made));
    return absl::OkStatus();
  };
  if (absl::Status s = join(kWorldGroup, {"world", rank, world}); !s.ok()) return s;
  if (shards == world) {
    ranks.groups[kShardGroup] = ranks.groups[kWorldGroup];
  } else if (shards == 1) {
    ranks.groups[kReplicaGroup] = ranks.groups[kWorldGroup];
  } else {
    const uint32_t shard = rank % shards, replica = rank / shards;
    if (absl::Status s = join(kShardGroup, {absl::StrCat("shards-", replica), shard, shards}); !s.ok()) return s;
    const Membership replicas{absl::StrCat("replicas-", shard), replica, world / shards};
    if (absl::Status s = join(kReplicaGroup, replicas); !s.ok()) return s;
  }
  const absl::Duration took = absl::FromChrono(std::chrono::steady_clock::now() - begin);
  LogInfo("process groups joined", {{"world", world}, {"took", absl::Trunc(took, absl::Milliseconds(1))}});
  return ranks;
}

}  // namespace muster::trainer
