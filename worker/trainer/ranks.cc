#include "worker/trainer/ranks.h"

#include <spdlog/spdlog.h>

#include "absl/time/clock.h"
#include "worker/collectives/gloo.h"

#ifdef MUSTER_CUDA
#include "worker/collectives/nccl.h"
#endif

namespace muster::trainer {
namespace {

// Longer than the coordinator's --start_deadline: that one names the rank that never came, this one only ends a rank
// that nobody ends.
constexpr absl::Duration kJoinTimeout = absl::Minutes(15);
constexpr absl::Duration kTimeout = absl::Minutes(5);  // of a collective: longer than a rank 0 that writes a checkpoint

// Both kinds of options have these fields.
template <typename Options>
Options MakeOptions(const Assignment& assignment) {
  Options options;
  options.rank = static_cast<int>(assignment.key().rank());
  options.size = static_cast<int>(assignment.world());
  options.name = "world";
  options.host = assignment.host().empty() ? "127.0.0.1" : assignment.host();
  options.timeout = kTimeout;
  options.join_timeout = kJoinTimeout;
  return options;
}

absl::StatusOr<std::unique_ptr<collectives::Group>> Make(const Assignment& assignment,
                                                         collectives::KeyValue& rendezvous) {
#ifdef MUSTER_CUDA
  if (assignment.device() == DEVICE_CUDA) {
    return collectives::MakeNccl(MakeOptions<collectives::NcclOptions>(assignment), rendezvous);
  }
#endif
  return collectives::MakeGloo(MakeOptions<collectives::GlooOptions>(assignment), rendezvous);
}

}  // namespace

absl::StatusOr<std::unique_ptr<collectives::Group>> JoinRanks(const Assignment& assignment,
                                                              collectives::KeyValue& rendezvous) {
  if (assignment.world() <= 1) return std::unique_ptr<collectives::Group>();
  const absl::Time begin = absl::Now();
  auto group = Make(assignment, rendezvous);
  if (group.ok()) {
    spdlog::info("rank {} of {} has met the others in {}", assignment.key().rank(), assignment.world(),
                 absl::FormatDuration(absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))));
  }
  return group;
}

}  // namespace muster::trainer
