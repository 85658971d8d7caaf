#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "models/inventory.h"
#include "worker/units/cached_attention.h"
#include "worker/units/cpu_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/llama/llama.h"
#include "worker/units/llama_rows.h"
#include "worker/units/low_rank.h"
#include "worker/units/operator_attention.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sequence_attention.h"
#include "worker/units/sequence_ranks.h"
#include "worker/units/split_backward.h"
#include "worker/units/tensor_rows.h"

namespace muster::units {
namespace {

// A weight [out, in], and a bias [out] or none; its adapter, if it has one.
struct LinearPart {
  Parameter weight;
  Parameter bias;
  std::optional<Adapter> adapter = std::nullopt;
};

// `tensors` as one, if they lie one after another in one storage; else undefined. The engine changes what a storage
// points to, never where tensors lie in it.
at::Tensor Joined(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  int64_t rows = 0, next = first.storage_offset();
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !t.is_alias_of(first) || !t.is_contiguous() || t.storage_offset() != next) return {};
    rows += t.size(0);
    next += t.numel();
  }
  std::vector<int64_t> sizes = first.sizes().vec();
  sizes[0] = rows;
  return at::as_strided(first, sizes, first.strides(), first.storage_offset());
}

Parameter Joined(const std::vector<LinearPart>& parts, Parameter LinearPart::*which) {
  std::vector<at::Tensor> values, gradients;
  for (const LinearPart& part : parts) {
    values.push_back((part.*which).value);
    gradients.push_back((part.*which).gradient);
  }
  if (!values.front().defined()) return {};
  const bool trained = gradients.front().defined();
  for (const at::Tensor& gradient : gradients) {
    if (gradient.defined() != trained) return {};
  }
  const Parameter joined{Joined(values), trained ? Joined(gradients) : at::Tensor()};
  return joined.value.defined() && joined.gradient.defined() == trained ? joined : Parameter{};
}

// Linear layers of one input, whose outputs lie beside each other: one GEMM where their weights lie together.
class Projection {
 public:
  Projection(const Gemms& gemms, RowCode rows, std::vector<LinearPart> parts)
      : gemms_(gemms), rows_(rows), parts_(std::move(parts)) {
    int64_t column = 0;
    for (const LinearPart& part : parts_) {
      const int64_t width = part.weight.value.size(0);
      if (part.adapter.has_value()) adapted_.push_back({*part.adapter, column, width});
      column += width;
    }
    LinearPart joined{Joined(parts_, &LinearPart::weight), Joined(parts_, &LinearPart::bias)};
    const bool biased = parts_[0].bias.value.defined();
    if (joined.weight.value.defined() && biased == joined.bias.value.defined()) parts_ = {std::move(joined)};
  }

  void Forward(const at::Tensor& x, const at::Tensor& y) const {
    EachPart(y, [&](const LinearPart& part, const at::Tensor& columns) {
      if (part.bias.value.defined()) {
        gemms_.ComputeWithBias(x, part.weight.value.t(), part.bias.value, columns);
      } else {
        gemms_.Compute(x, part.weight.value.t(), columns);
      }
    });
    for (const Adapted& part : adapted_) part.adapter.Forward(x, part.Of(y));
  }

  // Adds the parameters' gradients, or defers that; d_x, which may be x if it does not, becomes the gradient of x from
  // d, that of y.
  void Backward(const at::Tensor& x, const at::Tensor& d, const at::Tensor& d_x, const GradientSinks& sinks) const {
    const std::vector<at::Tensor> inner = InnerGradients(d);
    AddOrDefer(x, d, inner, sinks);
    InputGradient(d, inner, d_x);
  }

  // Its two parts, for what x is not yet known: what they share, first.
  std::vector<at::Tensor> InnerGradients(const at::Tensor& d) const {
    std::vector<at::Tensor> inner;
    for (const Adapted& part : adapted_) inner.push_back(part.adapter.InnerGradient(part.Of(d)));
    return inner;
  }
  void AddOrDefer(const at::Tensor& x, const at::Tensor& d, const std::vector<at::Tensor>& inner,
                  const GradientSinks& sinks) const {
    if (!sinks.defers()) return AddGradients(x, d, inner);
    sinks.Defer(x, d);
  }
  void AddGradients(const at::Tensor& x, const at::Tensor& d, const std::vector<at::Tensor>& inner) const {
    EachPart(d, [&](const LinearPart& part, const at::Tensor& columns) {
      if (part.weight.gradient.defined()) gemms_.AddTo(part.weight.gradient, columns.t(), x);
      if (part.bias.value.defined()) AddColumnSums(columns.contiguous(), part.bias.gradient, rows_);
    });
    for (size_t i = 0; i < inner.size(); ++i) adapted_[i].adapter.AddGradients(x, adapted_[i].Of(d), inner[i]);
  }
  void InputGradient(const at::Tensor& d, const std::vector<at::Tensor>& inner, const at::Tensor& d_x) const {
    bool first = true;
    EachPart(d, [&](const LinearPart& part, const at::Tensor& columns) {
      const at::Tensor to = std::exchange(first, false) ? d_x : at::empty_like(d_x);
      gemms_.Compute(columns, part.weight.value, to);
      if (!to.is_same(d_x)) d_x.add_(to);
    });
    for (size_t i = 0; i < inner.size(); ++i) adapted_[i].adapter.AddInputGradient(inner[i], d_x);
  }
  // What the first layer's columns of d give.
  void FirstInputGradient(const at::Tensor& d, int64_t columns, const at::Tensor& d_x) const {
    gemms_.Compute(d.narrow(1, 0, columns), parts_[0].weight.value.narrow(0, 0, columns), d_x);
  }

 private:
  struct Adapted {  // columns of y
    Adapter adapter;
    int64_t column, width;

    at::Tensor Of(const at::Tensor& y) const { return y.narrow(1, column, width); }
  };

  template <typename F>
  void EachPart(const at::Tensor& y, const F& body) const {
    int64_t column = 0;
    for (const LinearPart& part : parts_) {
      const int64_t width = part.weight.value.size(0);
      body(part, parts_.size() == 1 ? y : y.narrow(1, column, width));
      column += width;
    }
  }

  const Gemms gemms_;
  const RowCode rows_;
  std::vector<LinearPart> parts_;
  std::vector<Adapted> adapted_;
};

// With a hand-written backward, on CPUs and GPUs as GPT-2's block. Saves for backward: the input, q k v (turned; with
// norms also before those), attention's output, the sum after attention, gate and up, and a few scalars per token.
// Norms and SwiGLU are cheaper to recompute than to save. The feed-forward network runs in blocks of rows. dtypes as in
// GPT-2's block.
class LlamaBlock final : public UnitModule {
 public:
  LlamaBlock(const Llama& model, const Unit& unit, std::vector<Parameter> p, const LanguageShare& share,
             const UnitOptions& options)
      : model_(model),
        at_(ParametersOf(model)),
        p_(std::move(p)),
        gemms_(options.bf16_gemms, options.fp32_gemms),
        adapters_(MakeAdapters(unit, p_, gemms_)),
        rows_(p_[0].value.is_cpu() ? options.rows : RowCode::kDevice),
        index_(options.index),
        qkv_(gemms_, rows_, {Linear(at_.q, at_.q_bias), Linear(at_.k, at_.k_bias), Linear(at_.v, at_.v_bias)}),
        out_(gemms_, rows_, {Linear(at_.out)}),
        gate_up_(gemms_, rows_, {Linear(at_.gate), Linear(at_.up)}),
        down_(gemms_, rows_, {Linear(at_.down)}),
        rope_(MakeRopeTable(model, p_[0].value.options().dtype(WideType(p_[0].value.scalar_type())))),
        narrow_(IsNarrow(p_[0].value)),
        sequence_parallel_(share.sequence_parallel),
        q_width_(Value(at_.q).size(0)),
        kv_width_(Value(at_.k).size(0)),
        seen_kv_width_(int64_t{unit.attention().key_value_heads()} * model.head_width()),
        // All queries' heads of this rank see the same one; each serves as many of all heads.
        seen_kv_column_(mirrors_keys() ? share.rank * q_width_ / (model.heads() / model.key_value_heads()) /
                                             model.head_width() * model.head_width()
                                       : 0),
        seen_(rows_ == RowCode::kDevice
                  ? MakeKeyWindow(unit.attention().window(), model.context(), p_[0].value.options())
                  : KeyWindow{.window = unit.attention().window()}),
        piece_rows_(unit.piece_rows() *
                    (gemms_.ThroughPanels(p_[0].value) && !unit.has_tensor_exchange() ? kPanelRowFactor : 1)) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const bool keep = context.mode == Mode::kTrain || context.mode == Mode::kRecompute;
    const TensorRows ranks(context, sequence_parallel_);
    const int64_t width = in[0].size(2), sequences = in[0].size(0), tokens = in[0].size(1) * ranks.parts();
    const at::Tensor x = in[0].contiguous().view({-1, width});
    const at::Tensor statistics = Statistics(x, 1), statistics2 = Statistics(x, 1), normed = Narrow(x, width);
    RmsNorm(x, Value(at_.input_norm), model_.norm_epsilon(), normed, statistics, rows_);
    Attended a;
    a.projected = Qkv(ranks, normed);
    const OwnTokens own(context, tokens);
    Turn(a, own, tokens);
    at::Tensor attention;
    if (context.mode == Mode::kGenerate) {
      saved.tensors.resize(1);
      // LibTorch's attention multiplies in the dtype of its inputs, so these are widened as well.
      const bool widen = gemms_.ThroughPanels(a.projected);
      const auto given = [&](const at::Tensor& t) {
        const at::Tensor by_head = t.reshape({sequences, tokens, t.size(1), t.size(2)});
        return widen ? by_head.to(at::kFloat) : by_head;
      };
      attention = AttendAfter(given(Q(a)), given(SeenK(a)), given(SeenV(a)), context.position, saved.tensors[0],
                              {.window = seen_.window})
                      .view({-1, q_width_})
                      .to(a.projected.scalar_type());
    } else {
      attention = Attend(own, a, sequences, AttentionDropout(context, tokens), keep);
    }
    const at::Tensor sum = Wide(x, width);
    at::Tensor projected = narrow_ || ranks.divided() ? Narrow(attention, width) : sum;
    const RowChunks chunks = Chunks(ranks, x);
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      out_.Forward(chunks.Of(chunk, attention), projected.narrow(0, chunk.begin, chunk.end - chunk.begin));
      chunks.StartSum(chunk, projected);
    }
    projected = chunks.Sum(projected);
    DropRows(ResidualDropout(context, 1, tokens), tokens, ranks.first(projected.size(0)), projected);
    AddAndRmsNorm(x, projected, Value(at_.inner_norm), model_.norm_epsilon(), sum, normed, statistics2, rows_);
    projected = at::Tensor();
    const at::Tensor hidden = keep ? Narrow(attention, 2 * inner()) : at::Tensor();
    const DropoutPlace network = ResidualDropout(context, 2, tokens);
    const at::Tensor y = ranks.alone() ? FeedForward(normed, sum, hidden, network, tokens)
                                       : FeedForwardOfShare(ranks, normed, sum, hidden, network, tokens);
    if (keep) {
      saved.tensors = {x, statistics, a.projected, a.turned, a.q_statistics, a.k_statistics, attention};
      saved.tensors.insert(saved.tensors.end(), a.kept.begin(), a.kept.end());
      saved.tensors.insert(saved.tensors.end(), {sum, statistics2, hidden});
    }
    return {y.view(in[0].sizes())};
  }

  Activations Backward(const Context& context, Saved saved, const Activations& grads) override {
    return Backward(context, std::move(saved), grads, OwnGradients(p_), nullptr);
  }

  Activations BackwardInputs(const Context& context, Saved saved, const Activations& grads, Saved& deferred) override {
    std::vector<at::Tensor> vectors = DeferredVectors(p_, deferred);
    return Backward(context, std::move(saved), grads, std::move(vectors), &deferred);
  }

  // In the order in which Backward defers: the network's two for each block of rows, then attention's.
  void BackwardWeights(Saved deferred) override {
    const std::vector<at::Tensor> gemms = AddDeferredVectors(p_, std::move(deferred));
    for (size_t k = 0; k < gemms.size(); k += 2) {
      const bool network = k + 4 < gemms.size(), first = k % 4 == 0;
      (network ? (first ? down_ : gate_up_) : (first ? out_ : qkv_)).AddGradients(gemms[k], gemms[k + 1], {});
    }
  }

 private:
  // As GPT-2's.
  Activations Backward(const Context& context, Saved saved, const Activations& grads, std::vector<at::Tensor> own,
                       Saved* deferred) const {
    const TensorRows ranks(context, sequence_parallel_);
    const VectorSinks vectors(ranks, std::move(own), PartialVectors(ranks));
    Activations d = Backward(context, ranks, std::move(saved), grads, GradientSinks(vectors.all(), deferred));
    vectors.Finish();
    return d;
  }

  Activations Backward(const Context& context, const TensorRows& ranks, Saved saved, const Activations& grads,
                       const GradientSinks& sinks) const {
    const at::Tensor d = grads[0].contiguous();
    const int64_t tokens = d.size(1) * ranks.parts();
    const at::Tensor rows = d.view({-1, d.size(2)});  // becomes the gradient of the input
    std::vector<at::Tensor>& kept = saved.tensors;
    {
      const at::Tensor hidden = Pop(kept), statistics2 = Pop(kept), sum = Pop(kept);
      const DropoutPlace network = ResidualDropout(context, 2, tokens);
      if (ranks.alone()) {
        FeedForwardBackward(sum, statistics2, hidden, network, tokens, rows, sinks);
      } else {
        FeedForwardBackwardOfShare(ranks, sinks, sum, statistics2, hidden, network, tokens, rows);
      }
    }
    const at::Tensor x = kept[0], statistics = kept[1];
    const at::Tensor d_projected = AttentionBackward(std::exchange(kept, {}), context, ranks, sinks, rows, tokens);
    at::Tensor normed = Narrow(x, x.size(1));
    RmsNormAgain(x, statistics, Value(at_.input_norm), normed, rows_);
    at::Tensor d_normed;
    if (ranks.alone()) {
      d_normed = sinks.Beside(normed);
      qkv_.Backward(normed, d_projected, d_normed, sinks);
    } else {
      d_normed = QkvBackwardOfShare(ranks, std::exchange(normed, {}), d_projected, sinks);
    }
    RmsNormBackward(d_normed, x, statistics, Value(at_.input_norm), rows, sinks[at_.input_norm], rows_);
    return {d};
  }

  // Through panels, each block of rows widens the weights again, so a block has more rows. In bf16 they take the same
  // memory. Blocks of a share are the inventory's, which declares their sums.
  static constexpr uint64_t kPanelRowFactor = 2;

  // q k v beside each other [rows, q + 2 kv] as projected. q and k are turned in place or, where their heads are
  // normed, in `turned` [rows, q + kv], since the norms' backward needs them as they were.
  struct Attended {
    at::Tensor projected, turned, q_statistics, k_statistics;
    std::vector<at::Tensor> kept = {};  // what attention's backward needs beside them and its output
  };

  int64_t inner() const { return Value(at_.gate).size(0); }  // of this rank
  // Whether this rank has a share of the queries, and computes all keys and values.
  bool mirrors_keys() const {
    return q_width_ < int64_t{model_.heads()} * model_.head_width() &&
           kv_width_ == int64_t{model_.key_value_heads()} * model_.head_width();
  }

  // What each rank has gradients for of its rows or heads only.
  std::vector<int> PartialVectors(const TensorRows& ranks) const {
    std::vector<int> vectors;
    if (ranks.divided()) vectors = {at_.input_norm, at_.inner_norm};
    if (model_.qk_norm()) vectors.push_back(at_.q_norm);
    if (model_.qk_norm() && !mirrors_keys()) vectors.push_back(at_.k_norm);
    return vectors;
  }

  DropoutPlace AttentionDropout(const Context& context, int64_t tokens) const {
    return context.DropoutOfWeights(index_, q_width_ / model_.head_width(), tokens);
  }
  DropoutPlace ResidualDropout(const Context& context, uint32_t which, int64_t tokens) const {
    return context.DropoutOfTokens(context.dropout.residual, index_, which, tokens);
  }
  // The gradient of what was dropped from that of what is left of it; rows from `first` on.
  static at::Tensor Undropped(const at::Tensor& d, const DropoutPlace& dropout, int64_t tokens, int64_t first) {
    if (!dropout.on()) return d;
    at::Tensor copy = d.clone();
    DropRows(dropout, tokens, first, copy);
    return copy;
  }

  // Undefined for -1.
  Parameter Of(int index) const { return index < 0 ? Parameter{} : p_[static_cast<size_t>(index)]; }
  LinearPart Linear(int weight, int bias = -1) const {
    return {Of(weight), Of(bias), adapters_[static_cast<size_t>(weight)]};
  }
  const at::Tensor& Value(int index) const { return p_[static_cast<size_t>(index)].value; }

  static at::Tensor Wide(const at::Tensor& like, int64_t width) {
    return at::empty({like.size(0), width}, like.options());
  }
  at::Tensor Narrow(const at::Tensor& like, int64_t width) const {
    return at::empty({like.size(0), width}, p_[0].value.options());
  }
  static at::Tensor Statistics(const at::Tensor& like, int64_t each) {
    return at::empty({like.size(0) * each}, like.options());
  }
  // As a GEMM takes it.
  at::Tensor GemmGradient(const at::Tensor& d, const GradientSinks& sinks) const {
    return narrow_ ? d.to(p_[0].value.scalar_type()) : sinks.Unchanging(d);
  }

  static at::Tensor Pop(std::vector<at::Tensor>& tensors) {
    at::Tensor last = std::move(tensors.back());
    tensors.pop_back();
    return last;
  }

  // Columns as heads: [rows, heads, head].
  at::Tensor Heads(const at::Tensor& t, int64_t column, int64_t width) const {
    return t.narrow(1, column, width).view({t.size(0), width / model_.head_width(), model_.head_width()});
  }
  const at::Tensor& Turned(const Attended& a) const { return a.turned.defined() ? a.turned : a.projected; }
  at::Tensor Q(const Attended& a) const { return Heads(Turned(a), 0, q_width_); }
  at::Tensor K(const Attended& a) const { return Heads(Turned(a), q_width_, kv_width_); }
  at::Tensor QK(const Attended& a) const { return Heads(Turned(a), 0, q_width_ + kv_width_); }  // side by side
  at::Tensor V(const Attended& a) const { return Heads(a.projected, q_width_ + kv_width_, kv_width_); }

  // Those that this rank's queries see.
  at::Tensor SeenK(const Attended& a) const { return Heads(Turned(a), q_width_ + seen_kv_column_, seen_kv_width_); }
  at::Tensor SeenV(const Attended& a) const {
    return Heads(a.projected, q_width_ + kv_width_ + seen_kv_column_, seen_kv_width_);
  }

  static at::Tensor BySequence(const at::Tensor& t, int64_t sequences) {
    return t.view({sequences, t.size(0) / sequences, t.size(1), t.size(2)});
  }

  // q and k by the positions of `own`, `tokens` of each sequence.
  void Turn(Attended& a, const OwnTokens& own, int64_t tokens) const {
    if (model_.qk_norm()) {
      const at::Tensor q = Q(a), k = K(a);
      a.q_statistics = at::empty({q.size(0) * q.size(1)}, rope_->cosine.options());
      a.k_statistics = at::empty({k.size(0) * k.size(1)}, rope_->cosine.options());
      a.turned = Narrow(a.projected, q_width_ + kv_width_);
      HeadNorm(q, Value(at_.q_norm), model_.norm_epsilon(), Q(a), a.q_statistics, rows_);
      HeadNorm(k, Value(at_.k_norm), model_.norm_epsilon(), K(a), a.k_statistics, rows_);
    }
    Rope(QK(a), own.Rows(rope_->cosine), own.Rows(rope_->sine), tokens, 0, /*back=*/false, rows_);
  }

  // d_a.projected turns from the gradient of what attention took into that of what was projected.
  void TurnBack(const Attended& a, const Attended& d_a, const GradientSinks& sinks, const OwnTokens& own,
                int64_t tokens) const {
    Rope(QK(d_a), own.Rows(rope_->cosine), own.Rows(rope_->sine), tokens, 0, /*back=*/true, rows_);
    if (!model_.qk_norm()) return;
    HeadNormBackward(Q(d_a), Heads(a.projected, 0, q_width_), a.q_statistics, Value(at_.q_norm), sinks[at_.q_norm],
                     rows_);
    HeadNormBackward(K(d_a), Heads(a.projected, q_width_, kv_width_), a.k_statistics, Value(at_.k_norm),
                     sinks[at_.k_norm], rows_);
  }

  // Attention's output. If `keep`, a.kept receives what its backward needs.
  at::Tensor Attend(const OwnTokens& own, Attended& a, int64_t sequences, const DropoutPlace& dropout,
                    bool keep) const {
    const at::Tensor q = BySequence(Q(a), sequences), k = BySequence(SeenK(a), sequences),
                     v = BySequence(SeenV(a), sequences);
    if (!own.whole()) {
      const SequenceAttention attended = AttendToSequence(own, q, k, v, dropout, seen_, rows_);
      a.kept = {attended.log_sums};
      return attended.out;
    }
    if (rows_ == RowCode::kDevice) return AttendByOperator(q, k, v, keep ? &a.kept : nullptr, dropout, seen_);
    const at::Tensor out = Narrow(a.projected, q_width_);
    a.kept = {at::empty({q.size(0) * q.size(1) * q.size(2)}, rope_->cosine.options())};  // log-sums
    units::Attend(q, k, v, out, a.kept[0], dropout, seen_.window);
    return out;
  }

  // Backward of attention and of the projections around it, but for that of q, k and v, whose gradient it returns.
  // `kept`: what Forward saved, up to what attention kept; `d`: the gradient of the sum after attention.
  at::Tensor AttentionBackward(std::vector<at::Tensor> kept, const Context& context, const TensorRows& ranks,
                               const GradientSinks& sinks, const at::Tensor& d, int64_t tokens) const {
    Attended a{kept[2], kept[3], kept[4], kept[5], {kept.begin() + 7, kept.end()}};
    const int64_t sequences = a.projected.size(0) / tokens;
    const Attended d_a{.projected = mirrors_keys() ? at::zeros_like(a.projected) : at::empty_like(a.projected)};
    const OwnTokens own(context, tokens);
    {
      const at::Tensor attention = kept[6], d_attention = at::empty_like(attention);
      kept.clear();
      const DropoutPlace dropout = ResidualDropout(context, 1, tokens);
      at::Tensor dy = ranks.Whole(GemmGradient(Undropped(d, dropout, tokens, ranks.first(d.size(0))), sinks));
      at::Tensor started;  // while the projection's gradients are computed
      if (!own.whole()) started = own.StartGather(BySequence(SeenK(a), sequences), BySequence(SeenV(a), sequences));
      out_.Backward(attention, std::exchange(dy, {}), d_attention, sinks);
      if (!own.whole()) {
        AttendToSequenceBackward(own, std::move(started), BySequence(Q(a), sequences), {attention, a.kept[0]},
                                 d_attention, BySequence(Q(d_a), sequences), BySequence(SeenK(d_a), sequences),
                                 BySequence(SeenV(d_a), sequences), AttentionDropout(context, tokens), seen_, rows_);
      } else if (rows_ == RowCode::kDevice && mirrors_keys()) {
        const at::Tensor seen = Narrow(a.projected, q_width_ + 2 * seen_kv_width_);
        AttendByOperatorBackward(a.kept, d_attention, seen);
        Q(d_a).copy_(Heads(seen, 0, q_width_));
        SeenK(d_a).copy_(Heads(seen, q_width_, seen_kv_width_));
        SeenV(d_a).copy_(Heads(seen, q_width_ + seen_kv_width_, seen_kv_width_));
      } else if (rows_ == RowCode::kDevice) {
        AttendByOperatorBackward(a.kept, d_attention, d_a.projected);
      } else {
        AttendBackward(BySequence(Q(a), sequences), BySequence(SeenK(a), sequences), BySequence(SeenV(a), sequences),
                       attention, a.kept[0], d_attention, BySequence(Q(d_a), sequences),
                       BySequence(SeenK(d_a), sequences), BySequence(SeenV(d_a), sequences),
                       AttentionDropout(context, tokens), seen_.window);
      }
    }
    a.kept.clear();
    if (mirrors_keys()) {
      at::Tensor keys = d_a.projected.narrow(1, q_width_, 2 * kv_width_);
      const at::Tensor sum = keys.contiguous();
      ranks.ranks().Sum(sum);
      keys.copy_(sum);
    }
    TurnBack(a, d_a, sinks, own, tokens);
    return d_a.projected;
  }

  // The gradient of this rank's rows `normed` of what the projections took, summed while the weights' gradients are
  // computed, unless these are deferred.
  at::Tensor QkvBackwardOfShare(const TensorRows& ranks, at::Tensor normed, const at::Tensor& d,
                                const GradientSinks& sinks) const {
    RowChunks whole(ranks, normed.size(0), normed.size(0) * ranks.parts());
    normed = whole.StartWhole(normed);
    const at::Tensor d_normed = at::empty_like(normed);
    if (mirrors_keys() && ranks.ranks().rank() > 0) {  // of keys that all ranks compute, one rank gives it for all
      qkv_.FirstInputGradient(d, q_width_, d_normed);
    } else {
      qkv_.InputGradient(d, {}, d_normed);
    }
    whole.Await();
    ranks.StartSum(d_normed);
    qkv_.AddOrDefer(normed, d, {}, sinks);
    return ranks.Sum(d_normed);
  }

  // Rows of one block.
  int64_t Piece(int64_t rows) const {
    return static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
  }
  // `like` has this rank's rows.
  RowChunks Chunks(const TensorRows& ranks, const at::Tensor& like) const {
    return {ranks, like.size(0), Piece(like.size(0) * ranks.parts())};
  }

  // q k v of all rows, each chunk while the next one is gathered.
  at::Tensor Qkv(const TensorRows& ranks, const at::Tensor& normed) const {
    const int64_t rows = normed.size(0) * ranks.parts();
    const at::Tensor qkv = at::empty({rows, q_width_ + 2 * kv_width_}, normed.options());
    RowChunks chunks(ranks, normed.size(0), ranks.divided() ? Piece(rows) : rows);
    const at::Tensor whole = chunks.StartWhole(normed);
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      chunks.Await();
      chunks.Into(chunk, qkv,
                  [&](const at::Tensor& y) { qkv_.Forward(whole.narrow(0, chunk.begin, chunk.end - chunk.begin), y); });
    }
    return qkv;
  }

  // sum + network(normed). `hidden` receives gate and up, if it is defined.
  at::Tensor FeedForward(const at::Tensor& normed, const at::Tensor& sum, const at::Tensor& hidden,
                         const DropoutPlace& dropout, int64_t tokens) const {
    const int64_t rows = sum.size(0), width = sum.size(1), inner = model_.inner(), piece = Piece(rows);
    const at::Tensor y = at::empty_like(sum), active = at::empty({piece, inner}, normed.options());
    const at::Tensor scratch = hidden.defined() ? hidden : at::empty({piece, 2 * inner}, normed.options());
    const at::Tensor gemm_out = narrow_ ? at::empty({piece, width}, normed.options()) : at::Tensor();
    for (int64_t r = 0; r < rows; r += piece) {
      const int64_t n = std::min(piece, rows - r);
      const at::Tensor h = scratch.narrow(0, hidden.defined() ? r : 0, n), g = active.narrow(0, 0, n);
      const at::Tensor to = y.narrow(0, r, n), gemm = narrow_ ? gemm_out.narrow(0, 0, n) : to;
      gate_up_.Forward(normed.narrow(0, r, n), h);
      SwiGlu(h, g, rows_);
      down_.Forward(g, gemm);
      DropRows(dropout, tokens, r, gemm);
      Add(sum.narrow(0, r, n), gemm, to, rows_);
    }
    return y;
  }

  // d, the gradient of FeedForward's result, becomes that of `sum`; `hidden` becomes its own gradient.
  void FeedForwardBackward(const at::Tensor& sum, const at::Tensor& statistics, const at::Tensor& hidden,
                           const DropoutPlace& dropout, int64_t tokens, const at::Tensor& d,
                           const GradientSinks& sinks) const {
    const int64_t rows = sum.size(0), width = sum.size(1), inner = model_.inner(), piece = Piece(rows);
    at::Tensor active = at::empty({piece, inner}, hidden.options());
    at::Tensor normed = at::empty({piece, width}, hidden.options());
    const at::Tensor d_active = at::empty_like(active), d_normed = sinks.Beside(normed);
    for (int64_t r = 0; r < rows; r += piece) {
      const int64_t n = std::min(piece, rows - r);
      if (sinks.defers() && r > 0) {  // each block keeps its own
        active = at::empty({n, inner}, hidden.options()), normed = at::empty({n, width}, hidden.options());
      }
      const at::Tensor d_row = d_normed.narrow(0, 0, n);
      const at::Tensor g = active.narrow(0, 0, n), dg = d_active.narrow(0, 0, n), row = normed.narrow(0, 0, n);
      const at::Tensor h = hidden.narrow(0, r, n), s = sum.narrow(0, r, n), st = statistics.narrow(0, r, n);
      const at::Tensor to = d.narrow(0, r, n), dy = GemmGradient(Undropped(to, dropout, tokens, r), sinks);
      const std::vector<at::Tensor> inner = down_.InnerGradients(dy);
      down_.InputGradient(dy, inner, dg);
      SwiGluBackward(h, g, dg, h, rows_);
      down_.AddOrDefer(g, dy, inner, sinks);
      RmsNormAgain(s, st, Value(at_.inner_norm), row, rows_);
      gate_up_.Backward(row, h, d_row, sinks);
      RmsNormBackward(d_row, s, st, Value(at_.inner_norm), to, sinks[at_.inner_norm], rows_);
    }
  }

  // The two above of a share of the hidden layer. The ranks sum what they give for all rows.
  at::Tensor FeedForwardOfShare(const TensorRows& ranks, const at::Tensor& normed, const at::Tensor& sum,
                                const at::Tensor& hidden, const DropoutPlace& dropout, int64_t tokens) const {
    RowChunks chunks = Chunks(ranks, normed);
    const at::Tensor all = chunks.StartWhole(normed), y = at::empty_like(sum);
    const int64_t piece = Piece(chunks.rows());
    const at::Tensor active = at::empty({piece, inner()}, all.options());
    const at::Tensor scratch = hidden.defined() ? hidden : at::empty({piece, 2 * inner()}, all.options());
    const at::Tensor given = narrow_ || ranks.divided() ? Narrow(all, sum.size(1)) : y;
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      chunks.Await();
      for (int64_t r = chunk.begin; r < chunk.end; r += piece) {
        const int64_t n = std::min(piece, chunk.end - r);
        const at::Tensor h = scratch.narrow(0, hidden.defined() ? r : 0, n), g = active.narrow(0, 0, n);
        gate_up_.Forward(all.narrow(0, r, n), h);
        SwiGlu(h, g, rows_);
        down_.Forward(g, given.narrow(0, r, n));
      }
      chunks.StartSum(chunk, given);
    }
    const at::Tensor added = chunks.Sum(given);
    DropRows(dropout, tokens, ranks.first(added.size(0)), added);
    Add(sum, added, y, rows_);
    return y;
  }

  void FeedForwardBackwardOfShare(const TensorRows& ranks, const GradientSinks& sinks, const at::Tensor& sum,
                                  const at::Tensor& statistics, const at::Tensor& hidden, const DropoutPlace& dropout,
                                  int64_t tokens, const at::Tensor& d) const {
    at::Tensor normed = Narrow(sum, sum.size(1));
    RmsNormAgain(sum, statistics, Value(at_.inner_norm), normed, rows_);
    RowChunks chunks = Chunks(ranks, sum);
    at::Tensor all_dy = GemmGradient(Undropped(d, dropout, tokens, ranks.first(d.size(0))), sinks);
    std::tie(all_dy, normed) = chunks.StartWhole(all_dy, normed);
    const int64_t piece = Piece(chunks.rows());
    at::Tensor active = at::empty({piece, inner()}, hidden.options());
    const at::Tensor d_active = at::empty_like(active), d_normed = sinks.Beside(normed);
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      chunks.Await();
      for (int64_t r = chunk.begin; r < chunk.end; r += piece) {
        const int64_t n = std::min(piece, chunk.end - r);
        if (sinks.defers() && r > 0) active = at::empty({n, inner()}, hidden.options());  // each block keeps its own
        const at::Tensor g = active.narrow(0, 0, n), dg = d_active.narrow(0, 0, n), row = normed.narrow(0, r, n);
        const at::Tensor h = hidden.narrow(0, r, n), dy = all_dy.narrow(0, r, n);
        down_.InputGradient(dy, {}, dg);
        SwiGluBackward(h, g, dg, h, rows_);
        down_.AddOrDefer(g, dy, {}, sinks);
        gate_up_.Backward(row, h, d_normed.narrow(0, r, n), sinks);
      }
      chunks.StartSum(chunk, d_normed);
    }
    RmsNormBackward(chunks.Sum(d_normed), sum, statistics, Value(at_.inner_norm), d, sinks[at_.inner_norm], rows_);
  }

  const Llama model_;
  const LlamaParameters at_;
  const std::vector<Parameter> p_;
  const Gemms gemms_;
  const Adapters adapters_;
  const RowCode rows_;
  const int index_;
  const Projection qkv_, out_, gate_up_, down_;
  const std::shared_ptr<const RopeTable> rope_;
  const bool narrow_;  // parameters and GEMMs in bf16 or fp16
  const bool sequence_parallel_;
  const int64_t q_width_, kv_width_;              // of this rank, as projected
  const int64_t seen_kv_width_, seen_kv_column_;  // of its keys and values, those of its queries
  const KeyWindow seen_;                          // with a mask for LibTorch's operator
  const uint64_t piece_rows_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeLlamaBlock(const Llama& model, const Unit& unit, std::vector<Parameter> parameters,
                                           const LanguageShare& share, const UnitOptions& options) {
  return std::make_unique<LlamaBlock>(model, unit, std::move(parameters), share, options);
}

}  // namespace muster::units
