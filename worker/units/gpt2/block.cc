#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "models/inventory.h"
#include "worker/units/cached_attention.h"
#include "worker/units/cpu_attention.h"
#include "worker/units/gemm.h"
#include "worker/units/gpt2/gpt2.h"
#include "worker/units/low_rank.h"
#include "worker/units/operator_attention.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sequence_attention.h"
#include "worker/units/sequence_ranks.h"
#include "worker/units/split_backward.h"
#include "worker/units/tensor_rows.h"

namespace muster::units {
namespace {

// Through panels, each block of rows widens the weights again, so a block has more rows. In bf16 they take the same
// memory. Blocks of a share are the inventory's, which declares their sums.
constexpr uint64_t kPanelRowFactor = 2;

// Saves for backward: the input, q k v, attention's output, the sum after attention, the hidden layer before GELU and a
// few scalars per token: 10 widths, where autograd saves 16. Norms and GELU are cheaper to recompute than to save. The
// MLP runs in blocks of rows. GEMMs add to the flat gradients. With bf16 or fp16 parameters the GEMMs are too; the
// residual stream, the statistics of norms and softmax, and the parameters' gradients are fp32.
//
// One implementation for CPUs and GPUs: the row operations go by the device of their tensors, or by `rows`. Attention
// is our own on CPUs, and LibTorch's where the row operations are those of GPUs.
class Block final : public UnitModule {
 public:
  Block(const Unit& unit, std::vector<Parameter> p, int64_t heads, bool sequence_parallel, const UnitOptions& options)
      : p_(std::move(p)),
        gemms_(options.bf16_gemms, options.fp32_gemms),
        adapters_(MakeAdapters(unit, p_, gemms_)),
        rows_(p_[0].value.is_cpu() ? options.rows : RowCode::kDevice),
        narrow_(IsNarrow(p_[0].value)),
        heads_(heads),
        sequence_parallel_(sequence_parallel),
        index_(options.index),
        piece_rows_(unit.has_tensor_exchange() ? unit.piece_rows() : PieceRows(unit.piece_rows())) {}

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const TensorRows ranks(context, sequence_parallel_);
    const bool keep = context.mode == Mode::kTrain || context.mode == Mode::kRecompute;
    const int64_t width = in[0].size(2), samples = in[0].size(0), tokens = in[0].size(1) * ranks.parts();
    const at::Tensor x = in[0].contiguous().view({-1, width});
    const at::Tensor statistics = Wide(x, 2), statistics2 = Wide(x, 2);
    const at::Tensor normed = Narrow(x, width), sum = Wide(x, width);
    Norm(x, p_[kLn1W].value, p_[kLn1B].value, normed, statistics, rows_);
    const at::Tensor qkv = Qkv(ranks, normed);
    at::Tensor attention;
    std::vector<at::Tensor> kept;  // for attention's backward
    if (context.mode == Mode::kGenerate) {
      saved.tensors.resize(1);
      // LibTorch's attention multiplies in the dtype of its inputs, so these are widened as well.
      const at::Tensor given = gemms_.ThroughPanels(qkv) ? qkv.to(at::kFloat) : qkv;
      const at::Tensor all = ByHead(given, samples);
      attention = AttendAfter(all.select(2, 0), all.select(2, 1), all.select(2, 2), context.position, saved.tensors[0])
                      .view({qkv.size(0), -1})
                      .to(qkv.scalar_type());
    } else {
      attention = Attend({context, tokens}, qkv, samples, AttentionDropout(context, tokens), keep ? &kept : nullptr);
    }
    at::Tensor projected = narrow_ || ranks.divided() ? Narrow(qkv, width) : sum;
    const Dropped dropped = ResidualDropout(context, kAttentionAdds, tokens);
    at::Tensor bias;  // that is left to add
    if (ranks.alone()) {
      bias = Project(attention, kProjW, kProjB, dropped, 0, projected);
    } else {
      const RowChunks chunks = Chunks(ranks, x);
      for (const RowChunks::Chunk& chunk : chunks.all()) {
        Multiply(chunks.Of(chunk, attention), kProjW, projected.narrow(0, chunk.begin, chunk.end - chunk.begin));
        chunks.StartSum(chunk, projected);
      }
      projected = chunks.Sum(projected);
      bias = DropSum(ranks, kProjB, dropped, projected);
    }
    AddAndNorm(x, projected, bias, p_[kLn2W].value, p_[kLn2B].value, sum, normed, statistics2, rows_);
    projected = at::Tensor();
    const at::Tensor hidden = keep ? Narrow(qkv, p_[kFcW].value.size(1)) : at::Tensor();
    const Dropped network = ResidualDropout(context, kNetworkAdds, tokens);
    const at::Tensor y = ranks.alone() ? FeedForward(normed, sum, hidden, network)
                                       : FeedForwardOfShare(ranks, normed, sum, hidden, network);
    if (keep) {
      saved.tensors = {x, statistics, attention};
      saved.tensors.insert(saved.tensors.end(), kept.begin(), kept.end());
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

  // In the order in which Backward defers: the MLP's two for each block of rows, then attention's.
  void BackwardWeights(Saved deferred) override {
    const std::vector<at::Tensor> gemms = AddDeferredVectors(p_, std::move(deferred));
    for (size_t k = 0; k < gemms.size(); k += 2) {
      const bool mlp = k + 4 < gemms.size(), first = k % 4 == 0;
      WeightGradient(gemms[k], gemms[k + 1], mlp ? (first ? kFcProjW : kFcW) : (first ? kProjW : kAttnW), {});
    }
  }

 private:
  // The inventory's order.
  enum { kLn1W, kLn1B, kAttnW, kAttnB, kProjW, kProjB, kLn2W, kLn2B, kFcW, kFcB, kFcProjW, kFcProjB };

  // `own`: where vectors' gradients are added; `deferred`: as GradientSinks takes it. The first half of a backward
  // exchanges what a whole one does, the sums of vectors' gradients included.
  Activations Backward(const Context& context, Saved saved, const Activations& grads, std::vector<at::Tensor> own,
                       Saved* deferred) const {
    const TensorRows ranks(context, sequence_parallel_);
    const std::vector<int> by_row = {kLn1W, kLn1B, kProjB, kLn2W, kLn2B, kFcProjB};
    const VectorSinks vectors(ranks, std::move(own), ranks.divided() ? by_row : std::vector<int>());
    Activations d = Backward(context, ranks, std::move(saved), grads, GradientSinks(vectors.all(), deferred));
    vectors.Finish();
    return d;
  }

  Activations Backward(const Context& context, const TensorRows& ranks, Saved saved, const Activations& grads,
                       const GradientSinks& sinks) const {
    const at::Tensor d = grads[0].contiguous();
    const at::Tensor rows = Flat(d);  // becomes the gradient of the input
    const int64_t tokens = d.size(1) * ranks.parts();
    std::vector<at::Tensor>& kept = saved.tensors;
    {
      const at::Tensor hidden = Pop(kept), statistics2 = Pop(kept), sum = Pop(kept);
      const Dropped network = ResidualDropout(context, kNetworkAdds, tokens);
      if (ranks.alone()) {
        FeedForwardBackward(sum, statistics2, hidden, network, rows, sinks);
      } else {
        FeedForwardBackwardOfShare(ranks, sinks, sum, statistics2, hidden, network, rows);
      }
    }
    const at::Tensor x = kept[0], statistics = kept[1];
    const at::Tensor d_qkv =
        AttendAndProjectBackward({kept.begin() + 2, kept.end()}, rows, context, ranks, sinks, d.size(0), tokens);
    kept.clear();
    at::Tensor normed = Narrow(x, x.size(1));
    NormAgain(x, statistics, p_[kLn1W].value, p_[kLn1B].value, normed, rows_);
    RowChunks whole(ranks, normed.size(0), normed.size(0) * ranks.parts());
    normed = whole.StartWhole(normed);
    AddColumnSums(d_qkv, sinks[kAttnB], rows_);
    at::Tensor d_normed;
    if (ranks.alone()) {
      d_normed = sinks.Beside(normed);
      GemmBackward(normed, d_qkv, kAttnW, d_normed, sinks);
    } else {  // summed while the weight's gradient is computed, unless that is deferred
      d_normed = at::empty_like(normed);
      InputGradient(d_qkv, kAttnW, {}, d_normed);
      whole.Await();
      ranks.StartSum(d_normed);
      AddOrDefer(normed, d_qkv, kAttnW, {}, sinks);
      d_normed = ranks.Sum(d_normed);
    }
    NormBackward(d_normed, x, statistics, p_[kLn1W].value, rows, sinks[kLn1W], sinks[kLn1B], rows_);
    return {d};
  }

  // Which of the unit's places drops of the residual stream.
  enum : uint32_t { kAttentionAdds = 1, kNetworkAdds };
  struct Dropped {
    DropoutPlace place;
    int64_t tokens;  // rows of a sample
  };

  DropoutPlace AttentionDropout(const Context& context, int64_t tokens) const {
    return context.DropoutOfWeights(index_, heads_, tokens);
  }
  Dropped ResidualDropout(const Context& context, uint32_t which, int64_t tokens) const {
    return {context.DropoutOfTokens(context.dropout.residual, index_, which, tokens), tokens};
  }

  // y = x W, and with dropout, which takes the bias too, y = drop(x W + bias). Returns the bias that is left to add.
  // `first`: the row of x in the microbatch.
  at::Tensor Project(const at::Tensor& x, int weight, int bias, const Dropped& dropped, int64_t first,
                     const at::Tensor& y) const {
    if (!dropped.place.on()) {
      Multiply(x, weight, y);
      return p_[bias].value;
    }
    gemms_.ComputeWithBias(x, p_[weight].value, p_[bias].value, y);
    Adapt(x, weight, y);
    DropRows(dropped.place, dropped.tokens, first, y);
    return at::zeros_like(p_[bias].value);
  }
  // The same of rows that all ranks have summed.
  at::Tensor DropSum(const TensorRows& ranks, int bias, const Dropped& dropped, const at::Tensor& y) const {
    if (!dropped.place.on()) return p_[bias].value;
    y.add_(p_[bias].value);
    DropRows(dropped.place, dropped.tokens, ranks.first(y.size(0)), y);
    return at::zeros_like(p_[bias].value);
  }
  // The gradient of what Project gave from that of what was dropped.
  static at::Tensor Undropped(const at::Tensor& d, const Dropped& dropped, int64_t first) {
    if (!dropped.place.on()) return d;
    at::Tensor copy = d.clone();
    DropRows(dropped.place, dropped.tokens, first, copy);
    return copy;
  }

  // Tensors with as many rows as `like`: in the residual stream's dtype, and in the GEMMs' dtype.
  static at::Tensor Wide(const at::Tensor& like, int64_t width) {
    return at::empty({like.size(0), width}, like.options());
  }
  at::Tensor Narrow(const at::Tensor& like, int64_t width) const {
    return at::empty({like.size(0), width}, p_[0].value.options());
  }
  static at::Tensor Flat(const at::Tensor& t) { return t.view({t.size(0) * t.size(1), -1}); }

  static at::Tensor Pop(std::vector<at::Tensor>& tensors) {
    at::Tensor last = std::move(tensors.back());
    tensors.pop_back();
    return last;
  }

  uint64_t PieceRows(uint64_t rows) const { return rows * (gemms_.ThroughPanels(p_[0].value) ? kPanelRowFactor : 1); }

  // Rows of one block.
  int64_t Piece(int64_t rows) const {
    return static_cast<int64_t>(models::PieceRows(static_cast<uint64_t>(rows), piece_rows_));
  }
  // `like` has this rank's rows.
  RowChunks Chunks(const TensorRows& ranks, const at::Tensor& like) const {
    return {ranks, like.size(0), Piece(like.size(0) * ranks.parts())};
  }

  // The gradient of rows that a gemm and its bias gave, as a gemm takes it; the bias's is added.
  at::Tensor GemmGradient(const at::Tensor& d, int bias, const GradientSinks& sinks) const {
    if (!narrow_) {
      AddColumnSums(d, sinks[bias], rows_);
      return sinks.Unchanging(d);
    }
    const at::Tensor narrow = Narrow(d, d.size(1));
    NarrowAndSum(d, narrow, sinks[bias], rows_);
    return narrow;
  }

  // Adds what the weight's adapter gives, if it has one.
  void Adapt(const at::Tensor& x, int weight, const at::Tensor& y) const {
    if (adapters_[weight].has_value()) adapters_[weight]->Forward(x, y);
  }
  // y = x W.
  void Multiply(const at::Tensor& x, int weight, const at::Tensor& y) const {
    gemms_.Compute(x, p_[weight].value, y);
    Adapt(x, weight, y);
  }

  // What both gradients below need of the weight's adapter; undefined: it has none.
  at::Tensor InnerGradient(const at::Tensor& d, int weight) const {
    return adapters_[weight].has_value() ? adapters_[weight]->InnerGradient(d) : at::Tensor();
  }
  // Adds the gradients of a weight and of its adapter.
  void WeightGradient(const at::Tensor& x, const at::Tensor& d, int weight, const at::Tensor& inner) const {
    if (p_[weight].gradient.defined()) gemms_.AddTo(p_[weight].gradient, x.t(), d);
    if (inner.defined()) adapters_[weight]->AddGradients(x, d, inner);
  }
  void AddOrDefer(const at::Tensor& x, const at::Tensor& d, int weight, const at::Tensor& inner,
                  const GradientSinks& sinks) const {
    if (!sinks.defers()) return WeightGradient(x, d, weight, inner);
    sinks.Defer(x, d);
  }
  void InputGradient(const at::Tensor& d, int weight, const at::Tensor& inner, const at::Tensor& d_x) const {
    gemms_.Compute(d, p_[weight].value.t(), d_x);
    if (inner.defined()) adapters_[weight]->AddInputGradient(inner, d_x);
  }
  // Both; d_x may be x.
  void GemmBackward(const at::Tensor& x, const at::Tensor& d, int weight, const at::Tensor& d_x,
                    const GradientSinks& sinks) const {
    const at::Tensor inner = InnerGradient(d, weight);
    AddOrDefer(x, d, weight, inner, sinks);
    InputGradient(d, weight, inner, d_x);
  }

  // q k v of all rows, each chunk while the next one is gathered.
  at::Tensor Qkv(const TensorRows& ranks, const at::Tensor& normed) const {
    const int64_t rows = normed.size(0) * ranks.parts();
    const at::Tensor qkv = at::empty({rows, p_[kAttnW].value.size(1)}, normed.options());
    RowChunks chunks(ranks, normed.size(0), ranks.divided() ? Piece(rows) : rows);
    const at::Tensor whole = chunks.StartWhole(normed);
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      const at::Tensor x = whole.narrow(0, chunk.begin, chunk.end - chunk.begin);
      chunks.Await();
      chunks.Into(chunk, qkv, [&](const at::Tensor& y) {
        gemms_.ComputeWithBias(x, p_[kAttnW].value, p_[kAttnB].value, y);
        Adapt(x, kAttnW, y);
      });
    }
    return qkv;
  }

  at::Tensor ByHead(const at::Tensor& qkv, int64_t samples) const {
    return qkv.view({samples, qkv.size(0) / samples, 3, heads_, qkv.size(1) / 3 / heads_});
  }

  // Returns attention's output; `kept`, if not null, receives what its backward needs beside that.
  at::Tensor Attend(const OwnTokens& own, const at::Tensor& qkv, int64_t samples, const DropoutPlace& dropout,
                    std::vector<at::Tensor>* kept) const {
    const at::Tensor by_head = ByHead(qkv, samples);
    const at::Tensor q = by_head.select(2, 0), k = by_head.select(2, 1), v = by_head.select(2, 2);
    if (!own.whole()) {
      const SequenceAttention attended = AttendToSequence(own, q, k, v, dropout, {}, rows_);
      if (kept != nullptr) *kept = {qkv, attended.log_sums};
      return attended.out;
    }
    if (rows_ == RowCode::kDevice) return AttendByOperator(q, k, v, kept, dropout);
    const at::Tensor out = at::empty({qkv.size(0), qkv.size(1) / 3}, qkv.options());
    const at::Tensor log_sums = at::empty({qkv.size(0) * heads_}, qkv.options().dtype(WideType(qkv.scalar_type())));
    units::Attend(q, k, v, out, log_sums, dropout);
    if (kept != nullptr) *kept = {qkv, log_sums};
    return out;
  }

  // Backward of attention and of its output projection. `kept`: attention's output, and what Attend kept. Returns the
  // gradient of q k v.
  at::Tensor AttendAndProjectBackward(std::vector<at::Tensor> kept, const at::Tensor& d, const Context& context,
                                      const TensorRows& ranks, const GradientSinks& sinks, int64_t samples,
                                      int64_t tokens) const {
    const at::Tensor attention = kept[0];
    kept.erase(kept.begin());
    const at::Tensor d_attention = at::empty_like(attention), d_qkv = Narrow(attention, 3 * attention.size(1));
    const Dropped dropped = ResidualDropout(context, kAttentionAdds, tokens);
    const at::Tensor added = Undropped(d, dropped, ranks.first(d.size(0)));
    at::Tensor dy = ranks.Whole(GemmGradient(added, kProjB, sinks));
    const OwnTokens own(context, tokens);
    if (!own.whole()) {
      const at::Tensor by_head = ByHead(kept[0], samples), d_by_head = ByHead(d_qkv, samples);
      at::Tensor started = own.StartGather(by_head.select(2, 1), by_head.select(2, 2));  // during the GEMMs
      GemmBackward(attention, std::exchange(dy, {}), kProjW, d_attention, sinks);
      AttendToSequenceBackward(own, std::move(started), by_head.select(2, 0), {attention, kept[1]}, d_attention,
                               d_by_head.select(2, 0), d_by_head.select(2, 1), d_by_head.select(2, 2),
                               AttentionDropout(context, tokens), {}, rows_);
      return d_qkv;
    }
    GemmBackward(attention, std::exchange(dy, {}), kProjW, d_attention, sinks);
    if (rows_ == RowCode::kDevice) {
      AttendByOperatorBackward(kept, d_attention, d_qkv);
    } else {
      const at::Tensor by_head = ByHead(kept[0], samples), d_by_head = ByHead(d_qkv, samples);
      AttendBackward(by_head.select(2, 0), by_head.select(2, 1), by_head.select(2, 2), attention, kept[1], d_attention,
                     d_by_head.select(2, 0), d_by_head.select(2, 1), d_by_head.select(2, 2),
                     AttentionDropout(context, tokens));
    }
    return d_qkv;
  }

  // sum + MLP(normed). `hidden` receives what GELU is applied to but for its bias, if it is defined.
  at::Tensor FeedForward(const at::Tensor& normed, const at::Tensor& sum, const at::Tensor& hidden,
                         const Dropped& dropped) const {
    const int64_t rows = sum.size(0), width = sum.size(1), piece = Piece(rows);
    const at::Tensor y = at::empty_like(sum), active = at::empty({piece, 4 * width}, normed.options());
    const at::Tensor scratch = hidden.defined() ? hidden : at::empty_like(active);
    const at::Tensor gemm_out = narrow_ ? at::empty({piece, width}, normed.options()) : at::Tensor();
    for (int64_t r = 0; r < rows; r += piece) {
      const int64_t n = std::min(piece, rows - r);
      const at::Tensor h = scratch.narrow(0, hidden.defined() ? r : 0, n);
      const at::Tensor g = active.narrow(0, 0, n), to = y.narrow(0, r, n);
      Multiply(normed.narrow(0, r, n), kFcW, h);
      AddAndGelu(h, p_[kFcB].value, g, rows_);
      const at::Tensor gemm = narrow_ ? gemm_out.narrow(0, 0, n) : to;
      const at::Tensor bias = Project(g, kFcProjW, kFcProjB, dropped, r, gemm);
      AddGemm(sum.narrow(0, r, n), gemm, bias, to, rows_);
    }
    return y;
  }

  // d, the gradient of FeedForward's result, becomes that of `sum`.
  void FeedForwardBackward(const at::Tensor& sum, const at::Tensor& statistics, const at::Tensor& hidden,
                           const Dropped& dropped, const at::Tensor& d, const GradientSinks& sinks) const {
    const int64_t rows = sum.size(0), width = sum.size(1), piece = Piece(rows);
    at::Tensor active = at::empty({piece, 4 * width}, hidden.options()), d_hidden = at::empty_like(active);
    at::Tensor normed = at::empty({piece, width}, hidden.options());
    const at::Tensor d_normed = sinks.Beside(normed);
    for (int64_t r = 0; r < rows; r += piece) {
      const int64_t n = std::min(piece, rows - r);
      if (sinks.defers() && r > 0) {  // each block keeps its own
        active = at::empty({n, 4 * width}, hidden.options()), d_hidden = at::empty_like(active);
        normed = at::empty({n, width}, hidden.options());
      }
      const at::Tensor g = active.narrow(0, 0, n), row = normed.narrow(0, 0, n), s = sum.narrow(0, r, n);
      const at::Tensor h = hidden.narrow(0, r, n), st = statistics.narrow(0, r, n);
      const at::Tensor dy = GemmGradient(Undropped(d.narrow(0, r, n), dropped, r), kFcProjB, sinks);
      const at::Tensor dh = d_hidden.narrow(0, 0, n), d_row = d_normed.narrow(0, 0, n);
      const at::Tensor inner = InnerGradient(dy, kFcProjW);
      InputGradient(dy, kFcProjW, inner, dh);
      GeluBackward(h, p_[kFcB].value, g, dh, sinks[kFcB], rows_);
      AddOrDefer(g, dy, kFcProjW, inner, sinks);
      NormAgain(s, st, p_[kLn2W].value, p_[kLn2B].value, row, rows_);
      GemmBackward(row, dh, kFcW, d_row, sinks);
      NormBackward(d_row, s, st, p_[kLn2W].value, d.narrow(0, r, n), sinks[kLn2W], sinks[kLn2B], rows_);
    }
  }

  // The two above of a share of the hidden layer. The ranks sum what they give for all rows.
  at::Tensor FeedForwardOfShare(const TensorRows& ranks, const at::Tensor& normed, const at::Tensor& sum,
                                const at::Tensor& hidden, const Dropped& dropped) const {
    RowChunks chunks = Chunks(ranks, normed);
    const at::Tensor all = chunks.StartWhole(normed), y = at::empty_like(sum);
    const int64_t piece = Piece(chunks.rows());
    const at::Tensor active = at::empty({piece, p_[kFcW].value.size(1)}, all.options());
    const at::Tensor scratch = hidden.defined() ? hidden : at::empty_like(active);
    const at::Tensor given = narrow_ || ranks.divided() ? Narrow(all, sum.size(1)) : y;
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      chunks.Await();
      for (int64_t r = chunk.begin; r < chunk.end; r += piece) {
        const int64_t n = std::min(piece, chunk.end - r);
        const at::Tensor h = scratch.narrow(0, hidden.defined() ? r : 0, n), g = active.narrow(0, 0, n);
        Multiply(all.narrow(0, r, n), kFcW, h);
        AddAndGelu(h, p_[kFcB].value, g, rows_);
        Multiply(g, kFcProjW, given.narrow(0, r, n));
      }
      chunks.StartSum(chunk, given);
    }
    const at::Tensor added = chunks.Sum(given);
    AddGemm(sum, added, DropSum(ranks, kFcProjB, dropped, added), y, rows_);
    return y;
  }

  void FeedForwardBackwardOfShare(const TensorRows& ranks, const GradientSinks& sinks, const at::Tensor& sum,
                                  const at::Tensor& statistics, const at::Tensor& hidden, const Dropped& dropped,
                                  const at::Tensor& d) const {
    at::Tensor normed = Narrow(sum, sum.size(1));
    NormAgain(sum, statistics, p_[kLn2W].value, p_[kLn2B].value, normed, rows_);
    RowChunks chunks = Chunks(ranks, sum);
    at::Tensor all_dy = GemmGradient(Undropped(d, dropped, ranks.first(d.size(0))), kFcProjB, sinks);
    std::tie(all_dy, normed) = chunks.StartWhole(all_dy, normed);
    const int64_t piece = Piece(chunks.rows());
    at::Tensor active = at::empty({piece, hidden.size(1)}, hidden.options()), d_hidden = at::empty_like(active);
    const at::Tensor d_normed = sinks.Beside(normed);
    for (const RowChunks::Chunk& chunk : chunks.all()) {
      chunks.Await();
      for (int64_t r = chunk.begin; r < chunk.end; r += piece) {
        const int64_t n = std::min(piece, chunk.end - r);
        if (sinks.defers() && r > 0) {  // each block keeps its own
          active = at::empty({n, hidden.size(1)}, hidden.options()), d_hidden = at::empty_like(active);
        }
        const at::Tensor g = active.narrow(0, 0, n), dh = d_hidden.narrow(0, 0, n), row = normed.narrow(0, r, n);
        const at::Tensor h = hidden.narrow(0, r, n), dy = all_dy.narrow(0, r, n);
        InputGradient(dy, kFcProjW, {}, dh);
        GeluBackward(h, p_[kFcB].value, g, dh, sinks[kFcB], rows_);
        AddOrDefer(g, dy, kFcProjW, {}, sinks);
        GemmBackward(row, dh, kFcW, d_normed.narrow(0, r, n), sinks);
      }
      chunks.StartSum(chunk, d_normed);
    }
    NormBackward(chunks.Sum(d_normed), sum, statistics, p_[kLn2W].value, d, sinks[kLn2W], sinks[kLn2B], rows_);
  }

  const std::vector<Parameter> p_;
  const Gemms gemms_;
  const Adapters adapters_;
  const RowCode rows_;
  const bool narrow_;    // parameters and GEMMs in bf16 or fp16
  const int64_t heads_;  // of this rank
  const bool sequence_parallel_;
  const int index_;
  const uint64_t piece_rows_;
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Block(const Unit& unit, std::vector<Parameter> parameters, int64_t heads,
                                          bool sequence_parallel, const UnitOptions& options) {
  return std::make_unique<Block>(unit, std::move(parameters), heads, sequence_parallel, options);
}

}  // namespace muster::units
