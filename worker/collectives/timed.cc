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

absl::Status RunOnce(Timed collective, Group& group, const std::vector<at::Tensor>& parts,
                     absl::FunctionRef<void()> progress) {
  std::vector<std::unique_ptr<Work>> works;
  for (const at::Tensor& part : parts) {
    progress();
    works.push_back(IssueTimed(collective, group, part));
  }
  for (const std::unique_ptr<Work>& work : works) {
    progress();
    if (absl::Status s = work->Wait(); !s.ok()) return s;
  }
  return absl::OkStatus();
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

double BusFactor(Timed collective, int ranks) {
  const double n = ranks;
  if (collective == Timed::kAllReduce) return 2 * (n - 1) / n;
  return IsDivided(collective) ? (n - 1) / n : 1;
}

absl::StatusOr<Timing> TimeCollective(Group& group, const TimingOptions& options, c10::Device device,
                                      absl::FunctionRef<void()> progress) {
  const int64_t multiple = IsDivided(options.collective) ? group.size() : 1;
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
  if (absl::Status s = RunOnce(options.collective, group, parts, progress); !s.ok()) return s;
  if (absl::Status s = WaitForDevice(group, values); !s.ok()) return s;
  if (absl::Status s = CheckResult(options.collective, group, parts); !s.ok()) return s;
  values.zero_();  // sums of sums would overflow

  // How often, from one that is warm; the ranks agree on the number by its mean.
  if (absl::Status s = group.Barrier(); !s.ok()) return s;
  auto begin = std::chrono::steady_clock::now();
  if (absl::Status s = RunOnce(options.collective, group, parts, progress); !s.ok()) return s;
  if (absl::Status s = WaitForDevice(group, values); !s.ok()) return s;
  const absl::StatusOr<double> once = MeanOverRanks(group, SecondsSince(begin), device);
  if (!once.ok()) return once.status();
  const double fit = absl::ToDoubleSeconds(options.about) / std::max(*once, 1e-9);
  Timing timing{.bytes = static_cast<uint64_t>(elements * kWidth),
                .count = static_cast<uint64_t>(elements / multiple),
                .iterations = static_cast<uint32_t>(std::clamp(fit, 1.0, double{kMostIterations})),
                .seconds = *once};
  if (timing.iterations > 1) {
    if (absl::Status s = group.Barrier(); !s.ok()) return s;
    begin = std::chrono::steady_clock::now();
    for (uint32_t i = 0; i < timing.iterations; ++i) {
      if (absl::Status s = RunOnce(options.collective, group, parts, progress); !s.ok()) return s;
    }
    if (absl::Status s = WaitForDevice(group, values); !s.ok()) return s;
    const absl::StatusOr<double> mean = MeanOverRanks(group, SecondsSince(begin) / timing.iterations, device);
    if (!mean.ok()) return mean.status();
    timing.seconds = *mean;
  }
  timing.algorithm_bytes_per_second = static_cast<double>(timing.bytes) / timing.seconds;
  timing.bus_bytes_per_second = timing.algorithm_bytes_per_second * BusFactor(options.collective, group.size());
  return timing;
}

}  // namespace muster::collectives
