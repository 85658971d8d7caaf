#include "worker/units/sync_batch_norm.h"

#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <tuple>
#include <vector>

#include "worker/units/autograd.h"

namespace muster::units {
namespace {

struct Moments {
  at::Tensor mean, variance;  // fp32 [channels], over all ranks; the variance is biased
  at::Tensor count;           // fp32 [1]: values of a channel on all ranks
};

// This rank's mean, variance and count: fp32 [2 * channels + 1].
at::Tensor OwnMoments(const at::Tensor& x) {
  const auto fp32 = x.options().dtype(at::kFloat).requires_grad(false);
  if (x.numel() == 0) return at::zeros({2 * x.size(1) + 1}, fp32);
  // With running statistics in fp32 the results are fp32, whatever dtype the input has; these stay zero.
  const at::Tensor running_mean = at::zeros({x.size(1)}, fp32), running_var = at::zeros({x.size(1)}, fp32);
  const auto [mean, variance] = at::batch_norm_update_stats(x, running_mean, running_var, /*momentum=*/0);
  return at::cat({mean, variance, at::full({1}, static_cast<double>(x.numel() / x.size(1)), fp32)});
}

// Chan, Golub and LeVeque 1979: of parts that have their own means. In fp64, which for so few numbers costs nothing.
Moments OfAllRanks(const at::Tensor& own, int64_t channels, SampleRanks& ranks) {
  const at::Tensor all = ranks.Gather(own).to(at::kDouble);
  const at::Tensor means = all.narrow(1, 0, channels), variances = all.narrow(1, channels, channels),
                   counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor count = counts.sum(0);
  const at::Tensor mean = means.mul(counts).sum(0).div(count);
  const at::Tensor variance = means.sub(mean).square().add(variances).mul(counts).sum(0).div(count);
  return {mean.to(at::kFloat), variance.to(at::kFloat), count.to(at::kFloat)};
}

void Update(const BatchNormStatistics& statistics, const Moments& moments) {
  const auto follow = [&](const at::Tensor& running, const at::Tensor& value) {
    running.mul_(1 - statistics.momentum).add_(value, statistics.momentum);
  };
  follow(statistics.running_mean, moments.mean);
  follow(statistics.running_var, moments.variance.mul(moments.count).div(moments.count.sub(1).clamp_min(1)));
}

at::Tensor AsChannels(const at::Tensor& values) { return values.view({1, -1, 1, 1}); }

std::vector<at::Tensor> GoBack(const at::Tensor& gradient, const at::Tensor& x, const at::Tensor& weight,
                               const Moments& moments, double epsilon, SampleRanks& ranks) {
  const int64_t channels = weight.size(0);
  at::Tensor grad_x = at::empty_like(x), grad_weight = at::zeros_like(weight), grad_bias = at::zeros_like(weight);
  if (x.numel() > 0) {
    // As if mean and variance were constants.
    std::tie(grad_x, grad_weight, grad_bias) = at::native_batch_norm_backward(
        gradient, x, weight, moments.mean, moments.variance, {}, {}, /*train=*/false, epsilon, {true, true, true});
  }
  // Those of bias and weight are also the sums of dy, and of dy * (x - mean) / sigma.
  const at::Tensor sums = at::cat({grad_bias, grad_weight});
  ranks.Sum(sums);
  if (x.numel() == 0) return {grad_x, grad_weight, grad_bias};
  // Through mean and variance: -weight / sigma / count * (sum of dy + (x - mean) / sigma * the other sum).
  const at::Tensor by_sigma = moments.variance.add(epsilon).rsqrt();
  const at::Tensor factor = weight.mul(by_sigma).div(moments.count).neg();
  const at::Tensor slope = factor.mul(by_sigma).mul(sums.narrow(0, channels, channels));
  const at::Tensor offset = factor.mul(sums.narrow(0, 0, channels)).sub(slope.mul(moments.mean));
  grad_x.add_(at::addcmul(AsChannels(offset), x, AsChannels(slope)));
  return {grad_x, grad_weight, grad_bias};
}

}  // namespace

at::Tensor SyncBatchNorm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const BatchNormStatistics& statistics, SampleRanks& ranks) {
  at::Tensor y;
  Moments moments;
  {
    const c10::AutoGradMode off(false);
    moments = OfAllRanks(OwnMoments(x), x.size(1), ranks);
    if (statistics.running_mean.defined()) Update(statistics, moments);
    y = x.numel() == 0 ? at::empty_like(x)
                       : std::get<0>(at::native_batch_norm(x, weight, bias, moments.mean, moments.variance,
                                                           /*training=*/false, /*momentum=*/0, statistics.epsilon));
  }
  return WithBackward(y, {x, weight, bias},
                      [x, weight, moments, epsilon = statistics.epsilon, &ranks](const at::Tensor& gradient) {
                        return GoBack(gradient, x, weight, moments, epsilon, ranks);
                      });
}

}  // namespace muster::units
