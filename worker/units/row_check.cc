#include "worker/units/row_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

constexpr int64_t kRows = 130, kWidth = 300;  // several tiles of rows, more columns than threads, and not a multiple
constexpr RowCode kCode = RowCode::kDevice;

// Numbers without a pattern, of about unit size; the same on every device.
at::Tensor Numbers(at::IntArrayRef shape, double seed, const at::TensorOptions& options) {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return at::arange(n, at::kDouble).add_(seed).square_().mul_(0.7).sin_().mul_(1.5).view(shape).to(options);
}

struct Compared {
  const char* operation;
  at::Tensor ours, theirs;
};

// In fp32, which LibTorch's operators get with what is narrow widened.
std::vector<Compared> Compare(at::Device device, at::ScalarType type) {
  const at::TensorOptions narrow = at::TensorOptions(device).dtype(type), wide = narrow.dtype(at::kFloat);
  const at::Tensor x = Numbers({kRows, kWidth}, 1, wide), gemm = Numbers({kRows, kWidth}, 2, narrow);
  const at::Tensor weight = Numbers({kWidth}, 3, narrow), bias = Numbers({kWidth}, 4, narrow);
  const at::Tensor d = Numbers({kRows, kWidth}, 5, narrow), w = weight.to(at::kFloat), b = bias.to(at::kFloat);
  const at::Tensor out = at::empty_like(gemm), statistics = at::empty({kRows, 2}, wide), sum = at::empty_like(x);
  std::vector<Compared> all;
  const auto theirs_of = [&](const at::Tensor& t) { return at::native_layer_norm(t, {kWidth}, w, b, kNormEpsilon); };

  Norm(x, weight, bias, out, statistics, kCode);
  const auto [normed, mean, rstd] = theirs_of(x);
  all.push_back({"Norm", out.clone(), normed});
  const at::Tensor d_x = at::zeros_like(x), d_weight = at::zeros({kWidth}, wide), d_bias = at::zeros({kWidth}, wide);
  NormBackward(d, x, statistics, weight, d_x, d_weight, d_bias, kCode);
  const auto [t_x, t_weight, t_bias] =
      at::native_layer_norm_backward(d.to(at::kFloat), x, {kWidth}, mean, rstd, w, b, {true, true, true});
  all.insert(all.end(), {{"NormBackward", d_x, t_x}, {"NormVectors", d_weight, t_weight}});
  all.push_back({"NormVectors", d_bias, t_bias});
  NormAgain(x, statistics, weight, bias, out, kCode);
  all.push_back({"NormAgain", out.clone(), normed});
  AddAndNorm(x, gemm, bias, weight, bias, sum, out, statistics, kCode);
  const at::Tensor added = x + gemm.to(at::kFloat) + b;
  all.push_back({"AddAndNorm", sum.clone(), added});
  all.push_back({"AddAndNorm", out.clone(), std::get<0>(theirs_of(added))});
  AddGemm(x, gemm, bias, sum, kCode);
  all.push_back({"AddGemm", sum, added});

  const at::Tensor before = gemm.to(at::kFloat) + b, d_hidden = d.clone(), d_hidden_bias = at::zeros({kWidth}, wide);
  AddAndGelu(gemm, bias, out, kCode);
  all.push_back({"AddAndGelu", out.clone(), at::gelu(before, "tanh")});
  GeluBackward(gemm, bias, out, d_hidden, d_hidden_bias, kCode);
  const at::Tensor slope = at::gelu_backward(d.to(at::kFloat), before, "tanh");
  all.insert(all.end(), {{"GeluBackward", d_hidden, slope}, {"GeluBackward", d_hidden_bias, slope.sum(0)}});

  const at::Tensor columns = at::zeros({kWidth}, wide), narrowed = at::empty_like(gemm), sums = at::zeros_like(columns);
  AddColumnSums(d, columns, kCode);
  NarrowAndSum(x, narrowed, sums, kCode);
  all.insert(all.end(), {{"AddColumnSums", columns, d.to(at::kFloat).sum(0)},
                         {"NarrowAndSum", narrowed, x},
                         {"NarrowAndSum", sums, x.sum(0)}});

  const at::Tensor targets = at::arange(kRows, narrow.dtype(at::kLong)), loss = at::zeros({}, wide.dtype(at::kDouble));
  const at::Tensor logits = gemm.clone(), log = at::log_softmax(gemm.to(at::kFloat), 1);
  // Not scatter and gather, whose deterministic kernels are others.
  const at::Tensor column = at::arange(kWidth, targets.options());
  const at::Tensor one = column.unsqueeze(0).eq(targets.unsqueeze(1)).to(at::kFloat);
  CrossEntropy(logits, targets, 1, loss, kCode);
  all.insert(all.end(), {{"CrossEntropy", logits, log.exp() - one}, {"CrossEntropy", loss, -(log * one).sum()}});
  return all;
}

}  // namespace

absl::Status CheckRowPrograms(at::Device device) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const Compared& c : Compare(device, type)) {
      const at::Tensor theirs = c.theirs.to(at::kDouble);
      const double limit = IsNarrow(c.ours) ? 1e-2 : 1e-4;
      const double error =
          (c.ours.to(at::kDouble) - theirs).abs().max().item<double>() / theirs.abs().max().item<double>();
      if (error <= limit) continue;  // and not if it is undefined
      return absl::InternalError(
          absl::StrFormat("row program %s in %s on %s is off from LibTorch's operators by %.2g of their largest "
                          "number, and rounding explains %.2g",
                          c.operation, c10::toString(type), device.str(), error, limit));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::units
