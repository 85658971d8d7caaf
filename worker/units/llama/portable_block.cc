#include <ATen/ops/cat.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>

#include <utility>
#include <vector>

#include "worker/units/autograd_unit.h"
#include "worker/units/cached_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/llama/llama.h"
#include "worker/units/low_rank.h"
#include "worker/units/operator_attention.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sequence_attention.h"
#include "worker/units/sequence_ranks.h"

namespace muster::units {
namespace {

class PortableLlamaBlock final : public AutogradUnit {
 public:
  PortableLlamaBlock(const Llama& model, const Unit& unit, std::vector<Parameter> p, const UnitOptions& options)
      : AutogradUnit(std::move(p)),
        model_(model),
        at_(ParametersOf(model)),
        gemms_(options.bf16_gemms),
        adapters_(AdapterPlaces(unit)),
        index_(options.index),
        seen_(MakeKeyWindow(unit.attention().window(), model.context(), Leaf(0).options().requires_grad(false))),
        rope_(MakeRopeTable(model, Leaf(0).options().dtype(WideType(Leaf(0).scalar_type())).requires_grad(false))) {}

 private:
  // x w^T [+ bias]; w [out, in].
  at::Tensor Linear(const at::Tensor& x, int weight, int bias = -1) const {
    const at::Tensor& w = Leaf(weight);
    const at::Tensor rows = x.reshape({-1, x.size(-1)}),
                     y = gemms_.Differentiable(rows, w.t(), bias < 0 ? at::Tensor() : Leaf(bias));
    return WithAdapter(gemms_, adapters_[static_cast<size_t>(weight)], rows, y, [&](int i) { return Leaf(i); })
        .view({x.size(0), x.size(1), w.size(0)});
  }

  // Over the last dimension; the result is in the parameters' dtype.
  at::Tensor Norm(const at::Tensor& x, int weight) const {
    const at::Tensor& w = Leaf(weight);
    const at::Tensor& cosine = rope_->cosine;  // in the wide dtype
    return at::rms_norm(x.to(cosine.scalar_type()), {x.size(-1)}, w.to(cosine.scalar_type()), model_.norm_epsilon())
        .to(w.scalar_type());
  }

  // q and k, both [sequences, tokens, heads, head]: pairs (a, b) of elements half a head apart, turned by the angle of
  // their position (Su et al. 2021; the pairs are those of Hugging Face's rotate_half). Both at once, and as
  // (a, b) cosine + (b, a) (-sine, sine): half of the kernels are launched that two halves of two tensors would take.
  std::vector<at::Tensor> Turn(const at::Tensor& q, const at::Tensor& k, const OwnTokens& own) const {
    const int64_t half = q.size(3) / 2, tokens = q.size(1);
    const at::Tensor cosine = own.Rows(rope_->cosine).view({tokens, 1, 1, half}),
                     sine = own.Rows(rope_->signed_sine).view({tokens, 1, 2, half});
    const at::Tensor pairs = at::cat({q, k}, 2).to(cosine.scalar_type()).unflatten(3, {2, half});
    return pairs.mul(cosine)
        .add(pairs.flip(3).mul(sine))
        .to(q.scalar_type())
        .flatten(3, 4)
        .split_with_sizes({q.size(2), k.size(2)}, 2);
  }

  // What is added to the residual stream, less what is dropped of it.
  at::Tensor Dropped(const Context& context, uint32_t which, const at::Tensor& y) const {
    return units::Dropped(context.DropoutOfTokens(context.dropout.residual, index_, which, y.size(1)), y);
  }

  // `kept`: keys and values of the tokens before `position`, or none to begin with the first and keep nothing.
  at::Tensor Attention(const Context& context, const at::Tensor& x, at::Tensor* kept) const {
    const OwnTokens own(context, x.size(1));
    const auto heads = [&](const at::Tensor& t, int64_t count) {
      return t.view({t.size(0), t.size(1), count, model_.head_width()});
    };
    at::Tensor q = heads(Linear(x, at_.q, at_.q_bias), model_.heads()),
               k = heads(Linear(x, at_.k, at_.k_bias), model_.key_value_heads());
    const at::Tensor v = heads(Linear(x, at_.v, at_.v_bias), model_.key_value_heads());
    if (model_.qk_norm()) q = Norm(q, at_.q_norm), k = Norm(k, at_.k_norm);
    const std::vector<at::Tensor> turned = Turn(q, k, own);
    q = turned[0], k = turned[1];
    if (kept != nullptr) return Linear(AttendAfter(q, k, v, context.position, *kept, seen_), at_.out);
    const DropoutPlace dropout = context.DropoutOfWeights(index_, model_.heads(), x.size(1));
    if (!own.whole()) {
      return Linear(AttendToSequenceByOperator(own, q, k, v, dropout, seen_).view({x.size(0), x.size(1), -1}), at_.out);
    }
    const at::Tensor y = AttendCausally(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), dropout, seen_);
    return Linear(y.transpose(1, 2).reshape({x.size(0), x.size(1), -1}), at_.out);
  }

  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor* kept) const override {
    const at::Tensor x = in.add(Dropped(context, 1, Attention(context, Norm(in, at_.input_norm), kept)));
    const at::Tensor normed = Norm(x, at_.inner_norm);
    const at::Tensor hidden = at::silu(Linear(normed, at_.gate)).mul(Linear(normed, at_.up));
    return x.add(Dropped(context, 2, Linear(hidden, at_.down)));
  }

  const Llama model_;
  const LlamaParameters at_;
  const Gemms gemms_;
  const std::vector<AdapterPlace> adapters_;
  const int index_;
  const KeyWindow seen_;
  const std::shared_ptr<const RopeTable> rope_;
};

}  // namespace

std::unique_ptr<UnitModule> MakePortableLlamaBlock(const Llama& model, const Unit& unit,
                                                   std::vector<Parameter> parameters, const UnitOptions& options) {
  return std::make_unique<PortableLlamaBlock>(model, unit, std::move(parameters), options);
}

}  // namespace muster::units
