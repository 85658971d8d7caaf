#include "worker/trainer/collective_bench.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "strategies/compression.h"
#include "strategies/ddp/ddp.h"
#include "worker/collectives/timed.h"
#include "worker/compression/timed_sum.h"
#include "worker/trainer/setup.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

constexpr double kLongestByDefault = 10;  // seconds

std::optional<collectives::Timed> TimedOf(Collective collective) {
  switch (collective) {
    case COLLECTIVE_ALL_REDUCE:
      return collectives::Timed::kAllReduce;
    case COLLECTIVE_ALL_GATHER:
      return collectives::Timed::kAllGather;
    case COLLECTIVE_REDUCE_SCATTER:
      return collectives::Timed::kReduceScatter;
    case COLLECTIVE_BROADCAST:
      return collectives::Timed::kBroadcast;
    case COLLECTIVE_REDUCE:
      return collectives::Timed::kReduce;
    default:
      return std::nullopt;
  }
}

bool Sums(Collective collective) { return collective != COLLECTIVE_ALL_GATHER && collective != COLLECTIVE_BROADCAST; }
bool HasRoot(Collective collective) { return collective == COLLECTIVE_BROADCAST || collective == COLLECTIVE_REDUCE; }

// The groups of two levels that all ranks form; null where they do not.
collectives::Levels LevelsOf(const Joined& joined) {
  const Mesh& mesh = joined.program.layout.mesh;
  const bool replicas = mesh.replica_levels() && mesh.replica == mesh.ranks();
  const bool shards = mesh.shard_levels() && mesh.shard == mesh.ranks();
  if (!replicas && !shards) return {};
  const std::vector<GroupSpec>& specs = joined.program.rank.schedule.groups;
  const auto find = [&](Axes axes) {
    const auto found = std::find(specs.begin(), specs.end(), GroupSpec{.axes = axes});
    return joined.ranks.groups.at(static_cast<size_t>(found - specs.begin()));
  };
  return replicas ? collectives::Levels{find(kReplicasInside), find(kReplicasBetween)}
                  : collectives::Levels{find(kShardsInside), find(kShardsBetween)};
}

// As the job compresses its sums; int8 where it does not.
Compression CompressionOf(const Train& train) {
  Compression compression = train.communication().compression();
  if (!strategies::Compresses(train.communication()) || compression.has_auto_()) {
    compression.mutable_int8();
    strategies::FillDefaults(train.optimizer(), compression);
  }
  if (compression.has_top_k()) {  // in the steps after its beginning, without an optimizer
    compression.mutable_top_k()->set_momentum_correction(false);
    compression.mutable_top_k()->set_warm_up_steps(0);
  }
  return compression;
}

uint64_t BucketBytes(const Train& train, const Inventory& inventory) {
  if (train.bench().has_bucket_bytes()) return train.bench().bucket_bytes();
  const double mib =
      train.strategy().has_zero() ? train.strategy().zero().bucket_mib() : train.strategy().ddp().bucket_mib();
  return mib > 0 ? static_cast<uint64_t>(mib * (1 << 20)) : ddp::DefaultBucketBytes(inventory);
}

class CollectiveBenchRun {
 public:
  CollectiveBenchRun(const Assignment& assignment, const Joined& joined, rundir::OutboxWriter& outbox, Pulse& pulse,
                     Link& link)
      : assignment_(assignment),
        train_(assignment.spec().train()),
        joined_(joined),
        world_(*joined.ranks.groups[kWorldGroup]),
        levels_(LevelsOf(joined)),
        compression_(CompressionOf(train_)),
        device_(assignment.device() == DEVICE_CUDA ? c10::kCUDA : c10::kCPU),
        outbox_(outbox),
        pulse_(pulse),
        link_(link) {}

  absl::StatusOr<Ended> Run(const std::function<bool()>& terminated);

 private:
  absl::Status Append(Record record, bool durable) {
    const absl::StatusOr<uint64_t> sequence = outbox_.Append(std::move(record), durable);
    if (!sequence.ok()) return sequence.status();
    link_.Ring(*sequence, step_);
    return absl::OkStatus();
  }
  // Whether these ranks can do that at all.
  bool Has(Collective collective, CollectiveMode mode) const;
  absl::StatusOr<collectives::Timing> TimeOne(Collective collective, CollectiveMode mode, uint64_t bytes);
  absl::StatusOr<double> Measure(Collective collective, CollectiveMode mode, uint64_t bytes);
  absl::StatusOr<bool> AnyRankStops(bool own);

  const Assignment& assignment_;
  const Train& train_;
  const Joined& joined_;
  collectives::Group& world_;
  const collectives::Levels levels_;
  const Compression compression_;
  const c10::Device device_;
  rundir::OutboxWriter& outbox_;
  Pulse& pulse_;
  Link& link_;
  const RealClock clock_;
  uint64_t step_ = 0;
};

bool CollectiveBenchRun::Has(Collective collective, CollectiveMode mode) const {
  const std::optional<collectives::Timed> timed = TimedOf(collective);
  if (!timed.has_value()) return true;  // refused when it is measured
  if (mode == COLLECTIVE_MODE_COMPRESSED) return collective == COLLECTIVE_ALL_REDUCE;
  if (mode == COLLECTIVE_MODE_HIERARCHICAL) return levels_.inside != nullptr && collectives::HasTwoLevels(*timed);
  return true;
}

absl::StatusOr<collectives::Timing> CollectiveBenchRun::TimeOne(Collective collective, CollectiveMode mode,
                                                                uint64_t bytes) {
  const std::optional<collectives::Timed> timed = TimedOf(collective);
  if (!timed.has_value() || mode <= COLLECTIVE_MODE_UNSPECIFIED || mode > COLLECTIVE_MODE_COMPRESSED) {
    return absl::UnimplementedError(absl::StrCat("bench: this trainer does not know collective ",
                                                 Collective_Name(collective), " in mode ", CollectiveMode_Name(mode)));
  }
  const uint64_t bucket_bytes = mode == COLLECTIVE_MODE_FLAT ? 0 : BucketBytes(train_, joined_.program.inventory);
  // Loading, reading and the like may take long as long as the process runs, as a call over a slow network does.
  const auto progress = [&] { pulse_.Enter(rundir::kReading); };
  if (mode == COLLECTIVE_MODE_COMPRESSED) {
    return compression::TimeCompressedSum(
        world_, {.compression = compression_, .bytes = bytes, .bucket_bytes = bucket_bytes}, device_, progress);
  }
  return collectives::TimeCollective(world_,
                                     {.collective = *timed,
                                      .levels = mode == COLLECTIVE_MODE_HIERARCHICAL ? levels_ : collectives::Levels{},
                                      .bytes = bytes,
                                      .bucket_bytes = bucket_bytes},
                                     device_, progress);
}

// The seconds of a call.
absl::StatusOr<double> CollectiveBenchRun::Measure(Collective collective, CollectiveMode mode, uint64_t bytes) {
  const absl::StatusOr<collectives::Timing> timing = TimeOne(collective, mode, bytes);
  if (!timing.ok()) return timing.status();
  pulse_.FinishStep(++step_);
  if (assignment_.key().rank() != 0) return timing->seconds;
  Record record;
  MetricPoint& point = *record.mutable_metrics();
  point.set_step(step_);
  *point.mutable_time() = ToProto(clock_.Read().wall);
  point.set_step_seconds(timing->seconds);
  CollectiveTime& time = *point.mutable_collective();
  time.set_collective(collective);
  time.set_mode(mode);
  time.set_bytes(timing->bytes);
  time.set_count(timing->count);
  time.set_type(mode == COLLECTIVE_MODE_COMPRESSED ? strategies::NameOf(compression_) : "float");
  time.set_redop(Sums(collective) ? "sum" : "none");
  time.set_root(HasRoot(collective) ? 0 : -1);
  time.set_ranks(assignment_.world());
  time.set_iterations(timing->iterations);
  time.set_seconds(timing->seconds);
  time.set_algorithm_bytes_per_second(timing->algorithm_bytes_per_second);
  time.set_bus_bytes_per_second(timing->bus_bytes_per_second);
  if (absl::Status s = Append(std::move(record), /*durable=*/false); !s.ok()) return s;
  return timing->seconds;
}

absl::StatusOr<bool> CollectiveBenchRun::AnyRankStops(bool own) {
  const at::Tensor stops = at::full({1}, own ? 1 : 0, at::device(device_).dtype(at::kFloat));
  if (absl::Status s = world_.AllReduce(stops)->Wait(); !s.ok()) return s;
  const bool any = stops.item<float>() > 0;
  if (absl::Status s = world_.Health(); !s.ok()) return s;
  return any;
}

absl::StatusOr<Ended> CollectiveBenchRun::Run(const std::function<bool()>& terminated) {
  const CollectiveBench& bench = train_.bench();
  const double longest = bench.has_longest_seconds() ? bench.longest_seconds() : kLongestByDefault;
  Record running;
  running.mutable_running()->set_schedule_digest(joined_.program.rank.digest);
  *running.mutable_running()->mutable_links() = {joined_.links.begin(), joined_.links.end()};
  if (absl::Status s = Append(std::move(running), /*durable=*/true); !s.ok()) return s;
  LogInfo("measuring collectives", {{"measurements", train_.steps()}, {"ranks", assignment_.world()}});
  for (const int collective : bench.collectives()) {
    for (const int mode : bench.modes()) {
      if (!Has(static_cast<Collective>(collective), static_cast<CollectiveMode>(mode))) continue;
      for (const uint64_t bytes : bench.bytes()) {
        const absl::StatusOr<bool> stops = AnyRankStops(link_.Newest().stop.has_value() || terminated());
        if (!stops.ok()) return stops.status();
        if (*stops) {
          LogInfo("stopped on request", {{"measurements", step_}});
          return Ended::kStopped;
        }
        const absl::StatusOr<double> seconds =
            Measure(static_cast<Collective>(collective), static_cast<CollectiveMode>(mode), bytes);
        if (!seconds.ok()) return seconds.status();
        if (*seconds > longest) break;  // the mean over ranks, so all ranks leave the same sizes out
      }
    }
  }
  Record finished;
  finished.mutable_finished()->set_step(step_);
  if (absl::Status s = Append(std::move(finished), /*durable=*/true); !s.ok()) return s;
  LogInfo("finished", {{"measurements", step_}});
  return Ended::kCompleted;
}

}  // namespace

absl::StatusOr<Ended> RunCollectiveBench(const Assignment& assignment, collectives::KeyValue& rendezvous,
                                         rundir::OutboxWriter& outbox, Pulse& pulse, Link& link,
                                         const std::function<bool()>& terminated) {
  if (assignment.world() <= 1) {
    return absl::InvalidArgumentError("bench: a job of one rank has no collectives to measure: use 2 or more ranks");
  }
  at::set_num_threads(assignment.cores() > 0 ? static_cast<int>(assignment.cores()) : AvailableCores());
  const absl::StatusOr<Joined> joined = Join(assignment, rendezvous);
  if (!joined.ok()) return joined.status();
  return CollectiveBenchRun(assignment, *joined, outbox, pulse, link).Run(terminated);
}

}  // namespace muster::trainer
