#include <ATen/ops/cat.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>

#include <utility>

#include "worker/units/autograd_unit.h"
#include "worker/units/cached_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/llama/llama.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

class PortableLlamaBlock final : public AutogradUnit {
 public:
  PortableLlamaBlock(const Llama& model, std::vector<Parameter> p, const UnitOptions& options)
      : AutogradUnit(std::move(p)),
        model_(model),
        at_(ParametersOf(model)),
        gemms_(options.bf16_gemms),
        rope_(MakeRopeTable(model, Leaf(0).options().dtype(WideType(Leaf(0).scalar_type())).requires_grad(false))) {}

 private:
  // x w^T [+ bias]; w [out, in].
  at::Tensor Linear(const at::Tensor& x, int weight, int bias = -1) const {
    const at::Tensor& w = Leaf(weight);
    const at::Tensor y =
        gemms_.Differentiable(x.reshape({-1, x.size(-1)}), w.t(), bias < 0 ? at::Tensor() : Leaf(bias));
    return y.view({x.size(0), x.size(1), w.size(0)});
  }

  // Over the last dimension; the result is in the parameters' dtype.
  at::Tensor Norm(const at::Tensor& x, int weight) const {
    const at::Tensor& w = Leaf(weight);
    const at::Tensor& cosine = rope_->cosine;  // in the wide dtype
    return at::rms_norm(x.to(cosine.scalar_type()), {x.size(-1)}, w.to(cosine.scalar_type()), model_.norm_epsilon())
        .to(w.scalar_type());
  }

  // x [sequences, tokens, heads, head]: pairs of elements half a head apart, turned by the angle of their position (Su
  // et al. 2021; the pairs are those of Hugging Face's rotate_half).
  at::Tensor Turn(const at::Tensor& x, int64_t position) const {
    const int64_t half = x.size(3) / 2, tokens = x.size(1);
    const at::Tensor cosine = rope_->cosine.narrow(0, position, tokens).unsqueeze(1),
                     sine = rope_->sine.narrow(0, position, tokens).unsqueeze(1);
    const at::Tensor wide = x.to(cosine.scalar_type()), a = wide.narrow(3, 0, half), b = wide.narrow(3, half, half);
    return at::cat({a.mul(cosine).sub(b.mul(sine)), b.mul(cosine).add(a.mul(sine))}, 3).to(x.scalar_type());
  }

  // `kept`: keys and values of the tokens before `position`, or none to begin with the first and keep nothing.
  at::Tensor Attention(const at::Tensor& x, at::Tensor* kept, int64_t position) const {
    const auto heads = [&](const at::Tensor& t, int64_t count) {
      return t.view({t.size(0), t.size(1), count, model_.head_width()});
    };
    at::Tensor q = heads(Linear(x, at_.q, at_.q_bias), model_.heads()),
               k = heads(Linear(x, at_.k, at_.k_bias), model_.key_value_heads());
    const at::Tensor v = heads(Linear(x, at_.v, at_.v_bias), model_.key_value_heads());
    if (model_.qk_norm()) q = Norm(q, at_.q_norm), k = Norm(k, at_.k_norm);
    q = Turn(q, position), k = Turn(k, position);
    if (kept != nullptr) return Linear(AttendAfter(q, k, v, position, *kept), at_.out);
    const at::Tensor y =
        at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), {}, 0.0,
                                         /*is_causal=*/true, std::nullopt,
                                         /*enable_gqa=*/model_.key_value_heads() != model_.heads());
    return Linear(y.transpose(1, 2).reshape({x.size(0), x.size(1), -1}), at_.out);
  }

  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor* kept) const override {
    const at::Tensor x = in.add(Attention(Norm(in, at_.input_norm), kept, context.position));
    const at::Tensor normed = Norm(x, at_.inner_norm);
    return x.add(Linear(at::silu(Linear(normed, at_.gate)).mul(Linear(normed, at_.up)), at_.down));
  }

  const Llama model_;
  const LlamaParameters at_;
  const Gemms gemms_;
  const std::shared_ptr<const RopeTable> rope_;
};

}  // namespace

std::unique_ptr<UnitModule> MakePortableLlamaBlock(const Llama& model, std::vector<Parameter> parameters,
                                                   const UnitOptions& options) {
  return std::make_unique<PortableLlamaBlock>(model, std::move(parameters), options);
}

}  // namespace muster::units
