#include "worker/collectives/timed.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::collectives {
namespace {

constexpr uint32_t kMostIterations = 100;
constexpr int64_t kWidth = 4;  // of a float

bool IsDivided(Timed collective) { return collective == Timed::kAllGather || collective == Timed::kReduceScatter; }

// What each bucket is before and after: each rank holds rank + 1 where it contributes.
std::unique_ptr<Work> IssueTimed(Timed collective, Group& group, const at::Tensor& part) {
  switch (collective) {
    case Timed::kAllReduce:
      return group.AllReduce(part);
    case Timed::kAllGather:
      return group.AllGather({part});
    case Timed::kReduceScatter:
      return group.ReduceScatter({part});
    case Timed::kBroadcast:
      return group.Broadcast(part, 0);
    case Timed::kReduce:
      return group.ReduceShares({{part, 0}});
  }
  return nullptr;
}

absl::Status WaitForDevice(Group& group, const at::Tensor& values) {
  if (!values.is_cpu()) (void)values.slice(0, 0, 1).cpu();
  return group.Health();
}

// Of a part that all ranks divide, the pieces of the ranks of each place of a node, as `group` moves them: between
// nodes, the piece of this rank's place on each node; inside, the pieces of each place on all nodes.
std::vector<RankShare> SharesOf(const Levels& levels, const Group* group, const at::Tensor& part) {
  const int places = levels.inside->size(), nodes = levels.between->size();
  const int64_t each = part.numel() / places / nodes;
  std::vector<RankShare> shares;
  for (int node = 0; node < nodes; ++node) {
    for (int place = 0; place < places; ++place) {
      if (group == levels.between && place != levels.inside->rank()) continue;
      const int64_t begin = (node * places + place) * each;
      shares.push_back({part.slice(0, begin, begin + each), group == levels.between ? node : place});
    }
  }
  return shares;
}

// Phase `phase` of a collective of two levels; null after the last.
std::unique_ptr<Work> IssuePhase(Timed collective, const Levels& levels, const at::Tensor& part, int phase) {
  Group &inside = *levels.inside, &between = *levels.between;
  const int64_t each = part.numel() / inside.size(), own = inside.rank() * each;
  switch (collective) {
    case Timed::kAllReduce:
      if (phase == 0) return inside.ReduceScatter({part});
      if (phase == 1) return between.AllReduce(part.slice(0, own, own + each));
      return phase == 2 ? inside.AllGather({part}) : nullptr;
    case Timed::kAllGather:
      if (phase == 0) return between.BroadcastShares(SharesOf(levels, &between, part));
      return phase == 1 ? inside.BroadcastShares(SharesOf(levels, &inside, part)) : nullptr;
    case Timed::kReduceScatter:
      if (phase == 0) return inside.ReduceShares(SharesOf(levels, &inside, part));
      return phase == 1 ? between.ReduceShares(SharesOf(levels, &between, part)) : nullptr;
    default:
      return nullptr;
  }
}

// Each part's phases one after the other, all parts in flight together.
absl::Status RunOnce(const TimingOptions& options, Group& group, const std::vector<at::Tensor>& parts,
                     absl::FunctionRef<void()> progress) {
  const bool levels = options.levels.inside != nullptr;
  std::vector<std::unique_ptr<Work>> works(parts.size());
  for (int phase = 0;; ++phase) {
    bool issued = false;
    for (size_t i = 0; i < parts.size(); ++i) {
      progress();
      if (works[i] != nullptr) {
        if (absl::Status s = works[i]->Wait(); !s.ok()) return s;
      }
      if (levels) {
        works[i] = IssuePhase(options.collective, options.levels, parts[i], phase);
      } else {
        works[i] = phase == 0 ? IssueTimed(options.collective, group, parts[i]) : nullptr;
      }
      issued |= works[i] != nullptr;
    }
    if (!issued) return absl::OkStatus();
  }
}

// After one run from rank + 1 everywhere.
absl::Status CheckResult(Timed collective, const Group& group, const std::vector<at::Tensor>& parts) {
  const int n = group.size(), rank = group.rank();
  const double sum = n * (n + 1) / 2.0;
  const auto holds = [&](const at::Tensor& values, double expected) {
    return values.numel() == 0 || (values.min().item<float>() == expected && values.max().item<float>() == expected);
  };
  for (const at::Tensor& part : parts) {
    const int64_t each = part.numel() / n;
    bool good = true;
    if (collective == Timed::kAllReduce) good = holds(part, sum);
    if (collective == Timed::kBroadcast) good = holds(part, 1);
    if (collective == Timed::kReduce) good = rank != 0 || holds(part, sum);
    if (collective == Timed::kReduceScatter) good = holds(part.slice(0, rank * each, (rank + 1) * each), sum);
    for (int r = 0; collective == Timed::kAllGather && r < n; ++r) {
      good = good && holds(part.slice(0, r * each, (r + 1) * each), r + 1);
    }
    if (!good) {
      return absl::InternalError(absl::StrCat("a collective of ", part.numel(),
                                              " elements gave a wrong result on rank ", rank, " of ", n,
                                              ": the network or its library is faulty"));
    }
  }
  return absl::OkStatus();
}

double SecondsSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The mean over ranks, the same on all.
absl::StatusOr<double> MeanOverRanks(Group& group, double value, c10::Device device) {
  const at::Tensor sum = at::full({1}, value, at::device(device).dtype(at::kDouble));
  if (absl::Status s = group.AllReduce(sum)->Wait(); !s.ok()) return s;
  const double mean = sum.item<double>() / group.size();
  if (absl::Status s = group.Health(); !s.ok()) return s;
  return mean;
}

}  // namespace

bool HasTwoLevels(Timed collective) { return collective == Timed::kAllReduce || IsDivided(collective); }

double BusFactor(Timed collective, int ranks) {
  const double n = ranks;
  if (collective == Timed::kAllReduce) return 2 * (n - 1) / n;
  return IsDivided(collective) ? (n - 1) / n : 1;
}

absl::StatusOr<Repeated> TimeRepeated(Group& group, const Repeatable& repeatable, absl::Duration about,
                                      c10::Device device) {
  if (absl::Status s = repeatable.run(); !s.ok()) return s;
  if (absl::Status s = repeatable.settle(); !s.ok()) return s;
  if (absl::Status s = repeatable.check(); !s.ok()) return s;
  const auto mean_of = [&](uint32_t iterations) -> absl::StatusOr<double> {
    if (absl::Status s = group.Barrier(); !s.ok()) return s;
    const auto begin = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < iterations; ++i) {
      if (absl::Status s = repeatable.run(); !s.ok()) return s;
    }
    if (absl::Status s = repeatable.settle(); !s.ok()) return s;
    return MeanOverRanks(group, SecondsSince(begin) / iterations, device);
  };
  // How often, from one that is warm; the ranks agree on the number by its mean.
  const absl::StatusOr<double> once = mean_of(1);
  if (!once.ok()) return once.status();
  const double fit = absl::ToDoubleSeconds(about) / std::max(*once, 1e-9);
  const auto iterations = static_cast<uint32_t>(std::clamp(fit, 1.0, double{kMostIterations}));
  if (iterations == 1) return Repeated{iterations, *once};
  const absl::StatusOr<double> mean = mean_of(iterations);
  if (!mean.ok()) return mean.status();
  return Repeated{iterations, *mean};
}

absl::StatusOr<Timing> TimeCollective(Group& group, const TimingOptions& options, c10::Device device,
                                      absl::FunctionRef<void()> progress) {
  const bool levels = options.levels.inside != nullptr;
  if (levels && !HasTwoLevels(options.collective)) return absl::InvalidArgumentError("a collective of one level");
  const int64_t multiple = IsDivided(options.collective) || levels ? group.size() : 1;
  const auto whole = [&](uint64_t bytes) {
    return std::max<int64_t>(1, static_cast<int64_t>(bytes) / kWidth / multiple) * multiple;
  };
  const int64_t elements = whole(options.bytes);
  const int64_t bucket = options.bucket_bytes == 0 ? elements : whole(options.bucket_bytes);
  const at::Tensor values = at::full({elements}, group.rank() + 1, at::device(device).dtype(at::kFloat));
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < elements; begin += bucket) {
    parts.push_back(values.slice(0, begin, std::min(elements, begin + bucket)));
  }
  const Repeatable repeatable{.run = [&] { return RunOnce(options, group, parts, progress); },
                              .settle = [&] { return WaitForDevice(group, values); },
                              .check =
                                  [&] {
                                    absl::Status status = CheckResult(options.collective, group, parts);
                                    values.zero_();  // sums of sums would overflow
                                    return status;
                                  }};
  const absl::StatusOr<Repeated> repeated = TimeRepeated(group, repeatable, options.about, device);
  if (!repeated.ok()) return repeated.status();
  const int64_t counted = IsDivided(options.collective) ? elements / group.size() : elements;
  Timing timing{.bytes = static_cast<uint64_t>(elements * kWidth),
                .count = static_cast<uint64_t>(counted),
                .iterations = repeated->iterations,
                .seconds = repeated->seconds};
  timing.algorithm_bytes_per_second = static_cast<double>(timing.bytes) / timing.seconds;
  timing.bus_bytes_per_second = timing.algorithm_bytes_per_second * BusFactor(options.collective, group.size());
  return timing;
}

}  // namespace muster::collectives
