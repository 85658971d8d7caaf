#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/split.h>

#include "worker/units/autograd_unit.h"
#include "worker/units/cached_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/gpt2/gpt2.h"
#include "worker/units/low_rank.h"
#include "worker/units/operator_attention.h"
#include "worker/units/sequence_attention.h"
#include "worker/units/sequence_ranks.h"

namespace muster::units {
namespace {

class PortableGpt2Block final : public AutogradUnit {
 public:
  PortableGpt2Block(const Unit& unit, std::vector<Parameter> p, int64_t heads, const UnitOptions& options)
      : AutogradUnit(std::move(p)),
        gemms_(options.bf16_gemms),
        adapters_(AdapterPlaces(unit)),
        heads_(heads),
        index_(options.index) {}

 private:
  // The inventory's order.
  enum { kLn1W, kLn1B, kAttnW, kAttnB, kProjW, kProjB, kLn2W, kLn2B, kFcW, kFcB, kFcProjW, kFcProjB };

  at::Tensor Linear(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor& w = Leaf(weight);  // [in, out]
    const at::Tensor rows = x.reshape({-1, x.size(-1)}), y = gemms_.Differentiable(rows, w, Leaf(bias));
    return WithAdapter(gemms_, adapters_[static_cast<size_t>(weight)], rows, y, [&](int i) { return Leaf(i); })
        .view({x.size(0), x.size(1), w.size(1)});
  }

  at::Tensor Norm(const at::Tensor& x, int weight, int bias) const {
    const at::Tensor &w = Leaf(weight), &b = Leaf(bias);
    if (w.scalar_type() == x.scalar_type()) return at::layer_norm(x, {x.size(-1)}, w, b, kNormEpsilon);
    // LibTorch's norm takes parameters of the input's dtype.
    const at::ScalarType wide = x.scalar_type();
    return at::layer_norm(x, {x.size(-1)}, w.to(wide), b.to(wide), kNormEpsilon).to(w.scalar_type());
  }

  // What is added to the residual stream, less what is dropped of it.
  at::Tensor Dropped(const Context& context, uint32_t which, const at::Tensor& y) const {
    return units::Dropped(context.DropoutOfTokens(context.dropout.residual, index_, which, y.size(1)), y);
  }

  // `kept`: keys and values of the tokens before `position`, or none to begin with the first and keep nothing.
  at::Tensor Attention(const Context& context, const at::Tensor& x, at::Tensor* kept) const {
    const int64_t position = context.position;
    const int64_t b = x.size(0), t = x.size(1), c = x.size(2);
    const at::Tensor projected = Linear(x, kAttnW, kAttnB);
    const int64_t width = c / heads_;
    if (kept != nullptr) {
      const at::Tensor all = projected.view({b, t, 3, heads_, width});
      return Linear(AttendAfter(all.select(2, 0), all.select(2, 1), all.select(2, 2), position, *kept), kProjW, kProjB);
    }
    const OwnTokens own(context, t);
    const DropoutPlace dropout = context.DropoutOfWeights(index_, heads_, t);
    // Split along the last dimension: its backward is one concatenation, where that of three selects fills and adds
    // three tensors of the whole size.
    std::vector<at::Tensor> qkv = at::split(projected, c, /*dim=*/2);
    for (at::Tensor& part : qkv) part = part.view({b, t, heads_, width});
    if (!own.whole()) {
      return Linear(AttendToSequenceByOperator(own, qkv[0], qkv[1], qkv[2], dropout, {}).view({b, t, c}), kProjW,
                    kProjB);
    }
    for (at::Tensor& part : qkv) part = part.transpose(1, 2);
    const at::Tensor y = AttendCausally(qkv[0], qkv[1], qkv[2], dropout);
    return Linear(y.transpose(1, 2).reshape({b, t, c}), kProjW, kProjB);
  }

  at::Tensor Compute(const Context& context, const at::Tensor& in, at::Tensor* kept) const override {
    const at::Tensor x = in.add(Dropped(context, 1, Attention(context, Norm(in, kLn1W, kLn1B), kept)));
    const at::Tensor h = at::gelu(Linear(Norm(x, kLn2W, kLn2B), kFcW, kFcB), "tanh");
    return x.add(Dropped(context, 2, Linear(h, kFcProjW, kFcProjB)));
  }

  const Gemms gemms_;
  const std::vector<AdapterPlace> adapters_;
  int64_t heads_;
  int index_;
};

}  // namespace

std::unique_ptr<UnitModule> MakePortableGpt2Block(const Unit& unit, std::vector<Parameter> parameters, int64_t heads,
                                                  const UnitOptions& options) {
  return std::make_unique<PortableGpt2Block>(unit, std::move(parameters), heads, options);
}

}  // namespace muster::units
