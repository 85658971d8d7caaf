#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "worker/units/gpt2.h"

namespace muster::units {
namespace {

constexpr double kEpsilon = 1e-5;
constexpr int64_t kEvaluationBytes = 32 << 20;  // of logits at a time: rows enough for a good product, little memory

// Final norm, logits by the tied embedding, and cross entropy. The backward is written by hand: the logits exist once,
// become log-probabilities and then their own gradient in place (autograd keeps three copies). Two passes in
// all, each row in the cache: softmax(log-probabilities) = softmax(logits), and the scale goes into the products.
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
    const int64_t chunk =
        keep ? rows : std::min(rows, std::max<int64_t>(64, kEvaluationBytes / (x.element_size() * vocabulary)));
    at::Tensor logits = at::empty({chunk, vocabulary}, x.options());
    const at::Tensor targets = context.targets.reshape({-1});
    at::Tensor loss = at::zeros({}, x.options()), picks;
    for (int64_t r = 0; r < rows; r += chunk) {
      const int64_t n = std::min(chunk, rows - r);
      at::Tensor part = logits.narrow(0, 0, n);
      at::mm_out(part, normed.narrow(0, r, n), wte_.value.t());
      at::_log_softmax_out(part, part, 1, /*half_to_float=*/false);
      picks = Picks(targets.narrow(0, r, n), vocabulary);
      loss.sub_(part.view(-1).index_select(0, picks).sum());
    }
    if (keep) saved.tensors = {x, normed, mean, rstd, logits, picks};
    return {loss};
  }

  Activations Backward(const Context& context, Saved saved, const Activations&) override {
    const at::Tensor &x = saved.tensors[0], &normed = saved.tensors[1];
    at::Tensor d = saved.tensors[4];
    // (softmax - one at the target), to be scaled where it is smaller
    at::_softmax_out(d, d, 1, /*half_to_float=*/false);
    const int64_t rows = x.size(0), width = x.size(1);
    d.view(-1).index_add_(0, saved.tensors[5], at::full({rows}, -1, x.options()));
    wte_.gradient.addmm_(d.t(), normed, 1, context.loss_scale);
    const at::Tensor d_normed = at::mm(d, wte_.value).mul_(context.loss_scale);
    auto [dx, d_weight, d_bias] = at::native_layer_norm_backward(
        d_normed, x, {width}, saved.tensors[2], saved.tensors[3], weight_.value, bias_.value, {true, true, true});
    weight_.gradient.add_(d_weight);
    bias_.gradient.add_(d_bias);
    const int64_t sequences = context.targets.size(0);
    return {dx.view({sequences, rows / sequences, width})};
  }

 private:
  // Where each row's target stands in the flat logits. One dimension, because LibTorch is deterministic there on a GPU.
  static at::Tensor Picks(const at::Tensor& targets, int64_t vocabulary) {
    return at::arange(targets.size(0), targets.options()).mul_(vocabulary).add_(targets);
  }

  Parameter weight_, bias_, wte_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Head(std::vector<Parameter> parameters) {
  return std::make_unique<Head>(std::move(parameters));
}

}  // namespace muster::units
