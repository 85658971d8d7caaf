#include "worker/trainer/compressing.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <memory>

#include "common/log/log.h"
#include "strategies/compression.h"
#include "worker/collectives/threads.h"
#include "worker/compression/compressed_sum.h"

namespace muster::trainer {
namespace {

constexpr int64_t kSumRows = 500, kSumElements = kSumRows * kSumRows;
constexpr size_t kLeastSums = 3, kMostSums = 5;

// Seconds for each element.
double MeasureSums(Compression compression, absl::Duration budget, const std::function<absl::Duration()>& now) {
  const c10::AutoGradMode off(false);
  strategies::FillDefaults(Optimizer(), compression);
  const auto groups = collectives::MakeThreads(1);
  const std::unique_ptr<compression::CompressedSum> sum =
      compression::MakeCompressedSum({.compression = std::move(compression),
                                      .elements = kSumElements,
                                      .parts = {{0, {kSumRows, kSumRows}}},
                                      .group = groups[0].get()});
  const at::Tensor given = at::sin(at::arange(kSumElements, at::kFloat)), gradients = given.clone();
  const absl::Duration end = now() + budget;
  absl::Duration least = absl::InfiniteDuration();
  for (size_t step = 0; step <= kLeastSums || (step <= kMostSums && now() < end); ++step) {
    gradients.copy_(given);
    const absl::Duration begin = now();
    for (const auto& work : sum->Begin(gradients, step)) (void)work->Wait();
    for (const auto& work : sum->Continue()) (void)work->Wait();
    sum->End();
    if (step > 0) least = std::min(least, now() - begin);
  }
  return absl::ToDoubleSeconds(least) / static_cast<double>(kSumElements);
}

}  // namespace

strategies::Compressing MeasureCompressing(absl::Duration budget, const std::function<absl::Duration()>& now) {
  Compression top_k, power_sgd, int8;
  top_k.mutable_top_k(), power_sgd.mutable_power_sgd(), int8.mutable_int8();
  try {
    return {.top_k = MeasureSums(top_k, budget / 3, now),
            .power_sgd = MeasureSums(power_sgd, budget / 3, now),
            .int8 = MeasureSums(int8, budget / 3, now)};
  } catch (const std::exception& e) {
    LogWarn("cannot measure what compressing takes", {{"error", e.what()}});
    return {};
  }
}

}  // namespace muster::trainer
