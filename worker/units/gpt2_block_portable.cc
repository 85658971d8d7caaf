#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/split.h>
#include <c10/core/GradMode.h>

#include "worker/units/autograd.h"
#include "worker/units/cached_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/gpt2.h"

namespace muster::units {
namespace {

class PortableBlock final : public UnitModule {
 public:
  PortableBlock(std::vector<Parameter> p, int64_t heads, Bf16Gemms bf16)
      : parameters_(std::move(p)), gemms_(bf16), heads_(heads) {
    // Leaves of autograd that share the flat buffer's storage.
    for (const Parameter& parameter : parameters_) leaves_.push_back(parameter.value.detach().requires_grad_(true));
  }

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    if (context.mode == Mode::kEvaluate || context.mode == Mode::kGenerate) {
      const c10::AutoGradMode off(false);
      if (context.mode == Mode::kEvaluate) return {Compute(in[0], nullptr, 0)};
      saved.tensors.resize(1);
      return {Compute(in[0], &saved.tensors[0], context.position)};
    }
    const c10::AutoGradMode on(true);
    const at::Tensor x = in[0].detach().requires_grad_(true);
    const at::Tensor y = Compute(x, nullptr, 0);
    saved.tensors = {x, y};
    return {y.detach()};
  }

  Activations Backward(const Context&, Saved saved, const Activations& grads) override {
    std::vector<at::Tensor> inputs = {saved.tensors[0]};
    inputs.insert(inputs.end(), leaves_.begin(), leaves_.end());
    std::vector<at::Tensor> gradients = Gradients(saved.tensors[1], grads[0], inputs);
    const c10::AutoGradMode off(false);
    for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].gradient.add_(gradients[i + 1]);
    return {std::move(gradients[0])};
  }

 private:
  // The inventory's order.
  enum { kLn1W, kLn1B, kAttnW, kAttnB, kProjW, kProjB, kLn2W, kLn2B, kFcW, kFcB, kFcProjW, kFcProjB };

  at::Tensor Linear(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor& w = leaves_[weight];  // [in, out]
    const at::Tensor y = gemms_.Differentiable(x.reshape({-1, x.size(-1)}), w, leaves_[bias]);
    return y.view({x.size(0), x.size(1), w.size(1)});
  }

  at::Tensor Norm(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor &w = leaves_[weight], &b = leaves_[bias];
    if (w.scalar_type() == x.scalar_type()) return at::layer_norm(x, {x.size(-1)}, w, b, kGpt2Epsilon);
    // LibTorch's norm takes parameters of the input's dtype.
    const at::ScalarType wide = x.scalar_type();
    return at::layer_norm(x, {x.size(-1)}, w.to(wide), b.to(wide), kGpt2Epsilon).to(w.scalar_type());
  }

  // `kept`: keys and values of the tokens before `position`, or none to begin with the first and keep nothing.
  at::Tensor Attention(const at::Tensor& x, at::Tensor* kept, int64_t position) const {
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const at::Tensor projected = Linear(x, kAttnW, kAttnB);
    const int64_t width = c / heads_;
    if (kept != nullptr) {
      return Linear(AttendAfter(projected.view({b, t, 3, heads_, width}), position, *kept), kProjW, kProjB);
    }
    // Split along the last dimension: its backward is one concatenation, where that of three selects fills and adds
    // three tensors of the whole size.
    std::vector<at::Tensor> qkv = at::split(projected, c, /*dim=*/2);
    for (at::Tensor& part : qkv) part = part.view({b, t, heads_, width}).transpose(1, 2);
    const at::Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return Linear(y.transpose(1, 2).reshape({b, t, c}), kProjW, kProjB);
  }

  at::Tensor Compute(const at::Tensor& in, at::Tensor* kept, int64_t position) const {
    const at::Tensor x = in.add(Attention(Norm(in, kLn1W, kLn1B), kept, position));
    const at::Tensor h = at::gelu(Linear(Norm(x, kLn2W, kLn2B), kFcW, kFcB), "tanh");
    return x.add(Linear(h, kFcProjW, kFcProjB));
  }

  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> leaves_;
  const Gemms gemms_;
  int64_t heads_;
};

}  // namespace

std::unique_ptr<UnitModule> MakePortableGpt2Block(std::vector<Parameter> parameters, int64_t heads, Bf16Gemms bf16) {
  return std::make_unique<PortableBlock>(std::move(parameters), heads, bf16);
}

}  // namespace muster::units
