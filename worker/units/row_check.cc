#include "worker/units/row_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "worker/units/adamw.h"
#include "worker/units/autograd.h"
#include "worker/units/llama_rows.h"
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

// A copy in fp32 that autograd differentiates.
at::Tensor WideLeaf(const at::Tensor& t) {
  return t.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_(true);
}

// Those of blocks with RMSNorm and SwiGLU, likewise.
std::vector<Compared> CompareGatedBlock(at::Device device, at::ScalarType type) {
  const at::TensorOptions narrow = at::TensorOptions(device).dtype(type), wide = narrow.dtype(at::kFloat);
  const at::Tensor x = Numbers({kRows, kWidth}, 1, wide), gemm = Numbers({kRows, kWidth}, 2, narrow);
  const at::Tensor weight = Numbers({kWidth}, 3, narrow), d = Numbers({kRows, kWidth}, 5, narrow);
  const at::Tensor out = at::empty_like(gemm), statistics = at::empty({kRows}, wide), sum = at::empty_like(x);
  std::vector<Compared> all;
  const c10::AutoGradMode on(true);
  const at::Tensor leaf = WideLeaf(x), w = WideLeaf(weight), given = d.to(at::kFloat);

  RmsNorm(x, weight, kNormEpsilon, out, statistics, kCode);
  const at::Tensor normed = at::rms_norm(leaf, {kWidth}, w, kNormEpsilon);
  all.push_back({"RmsNorm", out.clone(), normed.detach()});
  const at::Tensor d_x = at::zeros_like(x), d_weight = at::zeros({kWidth}, wide);
  RmsNormBackward(d, x, statistics, weight, d_x, d_weight, kCode);
  const std::vector<at::Tensor> gradients = Gradients(normed, given, {leaf, w});
  all.insert(all.end(), {{"RmsNormBackward", d_x, gradients[0]}, {"RmsNormVector", d_weight, gradients[1]}});
  RmsNormAgain(x, statistics, weight, out, kCode);
  all.push_back({"RmsNormAgain", out.clone(), normed.detach()});
  AddAndRmsNorm(x, gemm, weight, kNormEpsilon, sum, out, statistics, kCode);
  const at::Tensor added = x + gemm.to(at::kFloat);
  all.push_back({"AddAndRmsNorm", sum.clone(), added});
  all.push_back({"AddAndRmsNorm", out.clone(), at::rms_norm(added, {kWidth}, w.detach(), kNormEpsilon)});
  Add(x, gemm, sum, kCode);
  all.push_back({"Add", sum, added});

  const at::Tensor gate_up = Numbers({kRows, 2 * kWidth}, 4, narrow), d_gate_up = at::empty_like(gate_up);
  const at::Tensor both = WideLeaf(gate_up);
  const at::Tensor right = at::silu(both.narrow(1, 0, kWidth)).mul(both.narrow(1, kWidth, kWidth));
  SwiGlu(gate_up, out, kCode);
  all.push_back({"SwiGlu", out.clone(), right.detach()});
  SwiGluBackward(gate_up, out, d, d_gate_up, kCode);
  all.insert(all.end(), {{"SwiGluBackward", out.clone(), right.detach()},
                         {"SwiGluBackward", d_gate_up, Gradients(right, given, {both})[0]}});
  return all;
}

// Those of its heads, which lie in the middle of wider rows.
std::vector<Compared> CompareHeads(at::Device device, at::ScalarType type) {
  constexpr int64_t kHeads = 3, kHead = 70, kTokens = 50, kPosition = 7;
  const at::TensorOptions narrow = at::TensorOptions(device).dtype(type), wide = narrow.dtype(at::kFloat);
  const auto heads = [&](const at::Tensor& rows) {
    return rows.narrow(1, 11, kHeads * kHead).view({kRows, kHeads, kHead});
  };
  const at::Tensor x = heads(Numbers({kRows, kWidth}, 1, narrow)), d = heads(Numbers({kRows, kWidth}, 2, narrow));
  const at::Tensor out = heads(at::zeros({kRows, kWidth}, narrow)), weight = Numbers({kHead}, 3, narrow);
  const at::Tensor statistics = at::empty({kRows * kHeads}, wide), d_weight = at::zeros({kHead}, wide);
  std::vector<Compared> all;
  const c10::AutoGradMode on(true);
  const at::Tensor leaf = WideLeaf(x), w = WideLeaf(weight), given = d.to(at::kFloat);

  HeadNorm(x, weight, kNormEpsilon, out, statistics, kCode);
  const at::Tensor normed = at::rms_norm(leaf, {kHead}, w, kNormEpsilon);
  all.push_back({"HeadNorm", out.clone(), normed.detach()});
  const std::vector<at::Tensor> gradients = Gradients(normed, given, {leaf, w});
  HeadNormBackward(d, x, statistics, weight, d_weight, kCode);
  all.insert(all.end(), {{"HeadNormBackward", d, gradients[0]}, {"HeadNormVector", d_weight, gradients[1]}});

  const at::Tensor cosine = Numbers({kPosition + kTokens, kHead / 2}, 4, wide), sine = Numbers(cosine.sizes(), 5, wide);
  const at::Tensor positions = at::arange(kRows, wide.dtype(at::kLong)).remainder(kTokens).add(kPosition);
  const at::Tensor c = cosine.index_select(0, positions).unsqueeze(1), s = sine.index_select(0, positions).unsqueeze(1);
  const at::Tensor one = x.narrow(2, 0, kHead / 2).to(at::kFloat),
                   two = x.narrow(2, kHead / 2, kHead / 2).to(at::kFloat);
  for (const bool back : {false, true}) {
    const at::Tensor turned = heads(at::empty({kRows, kWidth}, narrow)), t = back ? -s : s;
    turned.copy_(x);
    Rope(turned, cosine, sine, kTokens, kPosition, back, kCode);
    all.push_back({"Rope", turned, at::cat({one * c - two * t, two * c + one * t}, 2)});
  }
  return all;
}

// AdamW's seventh step, of a run that begins at four elements and one that does not; what differs is the parameters'
// movement. Where a copy in a narrow type is written, it is the parameters cast.
std::vector<Compared> CompareAdamW(at::Device device, at::ScalarType narrow) {
  constexpr int64_t kElements = 20'001;
  const at::TensorOptions wide = at::TensorOptions(device).dtype(at::kFloat);
  const at::Tensor before = Numbers({kElements}, 1, wide), gradient = Numbers({kElements}, 2, wide);
  const at::Tensor mean = Numbers({kElements}, 3, wide), square = Numbers({kElements}, 4, wide).square();
  const auto one = [&](double value) { return at::full({1}, value, wide); };
  std::vector<at::Tensor> results[2];
  std::vector<Compared> all;
  for (const bool ours : {true, false}) {
    const at::Tensor computed = narrow == at::kFloat ? at::Tensor() : at::zeros({kElements}, wide.dtype(narrow));
    const at::Tensor p = before.clone(), m = mean.clone(), v = square.clone();
    for (const auto& [begin, length, decay] :
         {std::tuple(int64_t{0}, int64_t{9'001}, 0.1), std::tuple(int64_t{9'001}, kElements - 9'001, 0.0)}) {
      const auto part = [&, b = begin, n = length](const at::Tensor& t) { return t.defined() ? t.narrow(0, b, n) : t; };
      if (ours) {
        UpdateByAdamW({{part(p), part(gradient), part(m), part(v), part(computed), decay}},
                      {.learning_rate = 0.1, .step = 9}, {one(2), one(0), one(2)});
      } else {
        at::_fused_adamw_({part(p)}, {part(gradient).clone()}, {part(m)}, {part(v)}, {}, {one(7).squeeze(0)}, 0.1, 0.9,
                          0.999, decay, 1e-8, /*amsgrad=*/false, /*maximize=*/false, one(2), one(0));
      }
    }
    results[ours ? 0 : 1] = {p.sub(before), m, v};
    if (ours && computed.defined()) all.push_back({"AdamWStep", computed, p.to(narrow)});
  }
  for (size_t i = 0; i < 3; ++i) all.push_back({"AdamWStep", results[0][i], results[1][i]});
  return all;
}

}  // namespace

absl::Status CheckRowPrograms(at::Device device) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    std::vector<Compared> all = Compare(device, type);
    for (const auto& compare : {CompareGatedBlock, CompareHeads, CompareAdamW}) {
      for (Compared& compared : compare(device, type)) all.push_back(std::move(compared));
    }
    for (const Compared& c : all) {
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
