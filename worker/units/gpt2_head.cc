#include <ATen/ops/empty.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "worker/units/gpt2.h"

namespace muster::units {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr int64_t kChunkBytes = 4 << 20;  // a chunk's logits stay in the cache between the passes over them

// Final norm, logits by the tied embedding, and cross entropy. The backward is written by hand: the logits exist once,
// and become their own gradient in place, some rows at a time (autograd keeps three copies).
class Head final : public UnitModule {
 public:
  explicit Head(std::vector<Parameter> p) : weight_(p[0]), bias_(p[1]), wte_(p[2]) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const int64_t width = in[0].size(2), vocabulary = wte_.value.size(0);
    at::Tensor x = in[0];
    if (!context.targets.defined()) x = x.narrow(1, x.size(1) - 1, 1);
    x = x.reshape({-1, width});
    auto [normed, mean, rstd] = at::native_layer_norm(x, {width}, weight_.value, bias_.value, kEpsilon);
    if (!context.targets.defined()) return {at::mm(normed, wte_.value.t())};

    const int64_t rows = x.size(0);
    const bool keep = context.mode != Mode::kEvaluate;
    const int64_t chunk = Chunk(vocabulary);
    at::Tensor logits = at::empty({keep ? rows : std::min(chunk, rows), vocabulary}, x.options());
    at::Tensor log_sums = at::empty({rows, 1}, x.options());
    const at::Tensor targets = context.targets.reshape({-1, 1});
    at::Tensor loss;
    for (int64_t r = 0; r < rows; r += chunk) {
      const int64_t n = std::min(chunk, rows - r);
      at::Tensor part = logits.narrow(0, keep ? r : 0, n);
      at::mm_out(part, normed.narrow(0, r, n), wte_.value.t());
      at::Tensor sums = log_sums.narrow(0, r, n);
      at::logsumexp_out(sums, part, {1}, /*keepdim=*/true);
      const at::Tensor sum = sums.sub(part.gather(1, targets.narrow(0, r, n))).sum();
      loss = loss.defined() ? loss.add(sum) : sum;
    }
    if (keep) saved.tensors = {x, normed, mean, rstd, logits, log_sums};
    return {loss};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const at::Tensor &x = saved.tensors[0], &normed = saved.tensors[1], &logits = saved.tensors[4];
    const int64_t rows = x.size(0), width = x.size(1), vocabulary = wte_.value.size(0);
    const at::Tensor targets = context.targets.reshape({-1, 1});
    at::Tensor d_normed = at::empty({rows, width}, x.options());
    const at::Tensor minus_one = at::ones({1, 1}, x.options()).neg_();
    const int64_t chunk = Chunk(vocabulary);
    for (int64_t r = 0; r < rows; r += chunk) {
      const int64_t n = std::min(chunk, rows - r);
      at::Tensor d = logits.narrow(0, r, n);
      // (softmax - one at the target) * scale
      d.sub_(saved.tensors[5].narrow(0, r, n)).exp_();
      d.scatter_add_(1, targets.narrow(0, r, n), minus_one.expand({n, 1}));
      d.mul_(context.loss_scale);
      wte_.gradient.addmm_(d.t(), normed.narrow(0, r, n));
      at::Tensor out = d_normed.narrow(0, r, n);
      at::mm_out(out, d, wte_.value);
    }
    auto [dx, d_weight, d_bias] = at::native_layer_norm_backward(
        d_normed, x, {width}, saved.tensors[2], saved.tensors[3], weight_.value, bias_.value, {true, true, true});
    weight_.gradient.add_(d_weight);
    bias_.gradient.add_(d_bias);
    const int64_t sequences = context.targets.size(0);
    return {dx.view({sequences, rows / sequences, width})};
  }

 private:
  static int64_t Chunk(int64_t vocabulary) { return std::max<int64_t>(16, kChunkBytes / (4 * vocabulary)); }

  Parameter weight_, bias_, wte_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Head(std::vector<Parameter> parameters) {
  return std::make_unique<Head>(std::move(parameters));
}

}  // namespace muster::units
