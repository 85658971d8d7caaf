#include "worker/compression/timed_sum.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/compression/compressed_sum.h"

namespace muster::compression {
namespace {

constexpr int64_t kWidth = sizeof(float);
constexpr uint64_t kSeed = 1;             // so that the gradients of all ranks are known to each
constexpr double kLargestMistake = 0.02;  // of the square of the sum: what int8 and bf16 round

// What a sum of one bucket leaves out is orthogonal to what it has: top_k has some elements of the exact sum, int8 all,
// rounded, PowerSGD a projection.
absl::Status CheckSum(const at::Tensor& sum, const at::Tensor& exact) {
  const double own = sum.dot(sum).item<double>(), common = sum.dot(exact).item<double>();
  if (own > 0 && std::abs(common - own) <= kLargestMistake * own) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("a compressed sum of ", sum.numel(), " elements is wrong: its square is ",
                                          own, ", its product with the exact sum ", common));
}

class TimedSum {
 public:
  TimedSum(collectives::Group& group, const SumTimingOptions& options, c10::Device device) : group_(group) {
    const auto elements = [](uint64_t bytes) { return std::max<int64_t>(1, static_cast<int64_t>(bytes) / kWidth); };
    const int64_t all = elements(options.bytes),
                  bucket = options.bucket_bytes > 0 ? elements(options.bucket_bytes) : all;
    const at::Tensor one = at::randn({all}, at::detail::createCPUGenerator(kSeed), at::kFloat).to(device);
    const int ranks = group.size();
    gradients_ = one.mul(group.rank() + 1);
    exact_ = one.mul(ranks * (ranks + 1) / 2);
    sums_ = at::empty_like(gradients_);
    for (int64_t begin = 0; begin < all; begin += bucket) {
      const int64_t size = std::min(bucket, all - begin);
      const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(size)));
      buckets_.push_back({begin, size,
                          MakeCompressedSum({.compression = options.compression,
                                             .elements = size,
                                             .parts = {{.begin = 0, .shape = {side, size / side}}},
                                             .group = &group,
                                             .device = device})});
    }
  }

  absl::Status Run(absl::FunctionRef<void()> progress) {
    sums_.copy_(gradients_);
    std::vector<Works> works;
    for (const Bucket& bucket : buckets_) {
      progress();
      works.push_back(bucket.sum->Begin(Of(sums_, bucket), step_));
    }
    ++step_;
    for (int exchange = 0; exchange < 2; ++exchange) {
      for (size_t i = 0; i < buckets_.size(); ++i) {
        progress();
        for (const std::unique_ptr<collectives::Work>& work : works[i]) {
          if (absl::Status s = work->Wait(); !s.ok()) return s;
        }
        works[i] = exchange == 0 ? buckets_[i].sum->Continue() : Works();
      }
    }
    for (const Bucket& bucket : buckets_) bucket.sum->End();
    return absl::OkStatus();
  }

  absl::Status Settle() {
    if (!sums_.is_cpu()) (void)sums_.slice(0, 0, 1).cpu();
    return group_.Health();
  }

  // After the first run.
  absl::Status Check() {
    for (const Bucket& bucket : buckets_) {
      if (absl::Status s = CheckSum(Of(sums_, bucket), Of(exact_, bucket)); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

  uint64_t elements() const { return static_cast<uint64_t>(sums_.numel()); }

 private:
  struct Bucket {
    int64_t begin = 0, size = 0;
    std::unique_ptr<CompressedSum> sum;
  };
  static at::Tensor Of(const at::Tensor& all, const Bucket& bucket) { return all.narrow(0, bucket.begin, bucket.size); }

  collectives::Group& group_;
  at::Tensor gradients_, exact_, sums_;
  std::vector<Bucket> buckets_;
  uint64_t step_ = 0;
};

}  // namespace

absl::StatusOr<collectives::Timing> TimeCompressedSum(collectives::Group& group, const SumTimingOptions& options,
                                                      c10::Device device, absl::FunctionRef<void()> progress) {
  TimedSum sum(group, options, device);
  const absl::StatusOr<collectives::Repeated> repeated =
      collectives::TimeRepeated(group,
                                {.run = [&] { return sum.Run(progress); },
                                 .settle = [&] { return sum.Settle(); },
                                 .check = [&] { return sum.Check(); }},
                                options.about, device);
  if (!repeated.ok()) return repeated.status();
  collectives::Timing timing{.bytes = sum.elements() * kWidth,
                             .count = sum.elements(),
                             .iterations = repeated->iterations,
                             .seconds = repeated->seconds};
  timing.algorithm_bytes_per_second = static_cast<double>(timing.bytes) / timing.seconds;
  timing.bus_bytes_per_second =
      timing.algorithm_bytes_per_second * collectives::BusFactor(collectives::Timed::kAllReduce, group.size());
  return timing;
}

}  // namespace muster::compression
