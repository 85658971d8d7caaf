#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/split.h>

#include "worker/units/autograd_unit.h"
#include "worker/units/cached_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/gpt2/gpt2.h"

namespace muster::units {
namespace {

class PortableGpt2Block final : public AutogradUnit {
 public:
  PortableGpt2Block(std::vector<Parameter> p, int64_t heads, Bf16Gemms bf16)
      : AutogradUnit(std::move(p)), gemms_(bf16), heads_(heads) {}

 private:
  // The inventory's order.
  enum { kLn1W, kLn1B, kAttnW, kAttnB, kProjW, kProjB, kLn2W, kLn2B, kFcW, kFcB, kFcProjW, kFcProjB };

  at::Tensor Linear(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor& w = Leaf(weight);  // [in, out]
    const at::Tensor y = gemms_.Differentiable(x.reshape({-1, x.size(-1)}), w, Leaf(bias));
    return y.view({x.size(0), x.size(1), w.size(1)});
  }

  at::Tensor Norm(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor &w = Leaf(weight), &b = Leaf(bias);
    if (w.scalar_type() == x.scalar_type()) return at::layer_norm(x, {x.size(-1)}, w, b, kNormEpsilon);
    // LibTorch's norm takes parameters of the input's dtype.
    const at::ScalarType wide = x.scalar_type();
    return at::layer_norm(x, {x.size(-1)}, w.to(wide), b.to(wide), kNormEpsilon).to(w.scalar_type());
  }

  // `kept`: keys and values of the tokens before `position`, or none to begin with the first and keep nothing.
  at::Tensor Attention(const at::Tensor& x, at::Tensor* kept, int64_t position) const {
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const at::Tensor projected = Linear(x, kAttnW, kAttnB);
    const int64_t width = c / heads_;
    if (kept != nullptr) {
      const at::Tensor all = projected.view({b, t, 3, heads_, width});
      return Linear(AttendAfter(all.select(2, 0), all.select(2, 1), all.select(2, 2), position, *kept), kProjW, kProjB);
    }
    // Split along the last dimension: its backward is one concatenation, where that of three selects fills and adds
    // three tensors of the whole size.
    std::vector<at::Tensor> qkv = at::split(projected, c, /*dim=*/2);
    for (at::Tensor& part : qkv) part = part.view({b, t, heads_, width}).transpose(1, 2);
    const at::Tensor y = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
    return Linear(y.transpose(1, 2).reshape({b, t, c}), kProjW, kProjB);
  }

  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor* kept) const override {
    const at::Tensor x = in.add(Attention(Norm(in, kLn1W, kLn1B), kept, context.position));
    const at::Tensor h = at::gelu(Linear(Norm(x, kLn2W, kLn2B), kFcW, kFcB), "tanh");
    return x.add(Linear(h, kFcProjW, kFcProjB));
  }

  const Gemms gemms_;
  int64_t heads_;
};

}  // namespace

std::unique_ptr<UnitModule> MakePortableGpt2Block(std::vector<Parameter> parameters, int64_t heads, Bf16Gemms bf16) {
  return std::make_unique<PortableGpt2Block>(std::move(parameters), heads, bf16);
}

}  // namespace muster::units
