#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/index_add.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "worker/units/language.h"
#include "worker/units/row_kernels.h"
#include "worker/units/sequence_ranks.h"
#include "worker/units/tensor_rows.h"

namespace muster::units {
namespace {

// table[id] += row for each row, in order: one pass without a [vocabulary, width] temporary, the same bits every time.
void AddRows(const at::Tensor& ids, const at::Tensor& rows, const at::Tensor& table, bool portable) {
  if (portable || !table.is_cpu() || table.scalar_type() != at::kFloat) {
    table.index_add_(0, ids, rows);
    return;
  }
  const int64_t width = rows.size(1);
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const float* from = rows.const_data_ptr<float>();
  float* to = table.mutable_data_ptr<float>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    float* row = to + id[i] * width;
    for (int64_t k = 0; k < width; ++k) row[k] += from[i * width + k];
  }
}

class Embedding final : public UnitModule {
 public:
  Embedding(Parameter table, Parameter positions, const LanguageShare& share, const UnitOptions& options)
      : table_(std::move(table)),
        positions_(std::move(positions)),
        share_(share),
        index_(options.index),
        portable_(options.portable),
        flow_(WideType(table_.value.scalar_type())) {}

  Activations Forward(const Context& context, const Activations&, Saved&) override {
    const TensorRows ranks(context, share_.sequence_parallel);
    if (!ranks.alone()) return {ShareForward(context, ranks)};
    at::Tensor rows = at::embedding(table_.value, context.inputs()).to(flow_);
    if (positions_.value.defined()) rows.add_(Own(context).Rows(positions_.value));
    Drop(context, rows);
    return {rows};
  }

  Activations Backward(const Context& context, Saved, const Activations& grads) override {
    const TensorRows ranks(context, share_.sequence_parallel);
    if (!ranks.alone()) {
      ShareBackward(context, ranks, grads[0]);
      return {};
    }
    at::Tensor dx = grads[0].to(WideType(table_.value.scalar_type()));
    if (context.dropout.embedding > 0) {
      dx = dx.clone(at::MemoryFormat::Contiguous);
      Drop(context, dx);
    }
    if (table_.gradient.defined()) {
      AddRows(context.inputs().contiguous().view(-1), dx.contiguous().view({-1, dx.size(2)}), table_.gradient,
              portable_);
    }
    if (positions_.gradient.defined()) Own(context).AddToRows(dx.sum(0), positions_.gradient);
    return {};
  }

 private:
  // Ids as rows of this rank's part of the table; those of other ranks' as row 0, and where they are.
  std::pair<at::Tensor, at::Tensor> OwnIds(const Context& context) const {
    const at::Tensor id = context.inputs().reshape({-1}).sub(share_.first_id);
    const at::Tensor elsewhere = id.lt(0).logical_or_(id.ge(table_.value.size(0)));
    return {id.masked_fill(elsewhere, 0), elsewhere.unsqueeze(1)};
  }
  static OwnTokens Own(const Context& context) { return {context, context.inputs().size(1)}; }
  // By row of this rank's, its place among the tokens of the sequence that the ranks of the share have.
  static at::Tensor Places(const Context& context, const TensorRows& ranks, int64_t rows) {
    const at::Tensor row = at::arange(rows, context.inputs().options()).add_(ranks.first(rows));
    return row.remainder_(context.inputs().size(1));
  }

  // Each row is zero on all ranks but one, so their sum is exact in any dtype.
  at::Tensor ShareForward(const Context& context, const TensorRows& ranks) const {
    const auto [ids, elsewhere] = OwnIds(context);
    const at::Tensor own = at::embedding(table_.value, ids).masked_fill_(elsewhere, 0);
    const at::Tensor rows = ranks.Summed(own).to(flow_);
    if (positions_.value.defined()) {
      const at::Tensor positions = Own(context).Rows(positions_.value);
      at::Tensor(rows).add_(positions.index_select(0, Places(context, ranks, rows.size(0))));
    }
    DropRows(Place(context), context.inputs().size(1), ranks.first(rows.size(0)), rows);
    return rows.view({context.inputs().size(0), -1, rows.size(1)});
  }

  void ShareBackward(const Context& context, const TensorRows& ranks, const at::Tensor& d) const {
    const int64_t tokens = context.inputs().size(1), width = d.size(2);
    at::Tensor dx = d.to(WideType(table_.value.scalar_type())).contiguous().view({-1, width});
    if (context.dropout.embedding > 0) {
      dx = dx.clone();
      DropRows(Place(context), tokens, ranks.first(dx.size(0)), dx);
    }
    if (positions_.value.defined() && !ranks.divided()) {
      if (positions_.gradient.defined()) {
        Own(context).AddToRows(dx.view({-1, tokens, width}).sum(0), positions_.gradient);
      }
    } else if (positions_.value.defined()) {
      at::Tensor sum = at::zeros({tokens, width}, dx.options());
      sum.index_add_(0, Places(context, ranks, dx.size(0)), dx);
      ranks.ranks().Sum(sum);
      if (positions_.gradient.defined()) Own(context).AddToRows(sum, positions_.gradient);
    }
    const at::Tensor all = ranks.Whole(dx);
    if (!table_.gradient.defined()) return;
    const auto [ids, elsewhere] = OwnIds(context);
    AddRows(ids, all.masked_fill(elsewhere, 0), table_.gradient, portable_);
  }

  DropoutPlace Place(const Context& context) const {
    return context.DropoutOfTokens(context.dropout.embedding, index_, 0, context.inputs().size(1));
  }

  // rows [samples, tokens, width]
  void Drop(const Context& context, const at::Tensor& rows) const {
    DropRows(Place(context), rows.size(1), 0, rows.view({-1, rows.size(2)}));
  }

  const Parameter table_, positions_;
  const LanguageShare share_;
  const int index_;
  const bool portable_;
  const at::ScalarType flow_;  // dtype of its output
};

}  // namespace

std::unique_ptr<UnitModule> MakeTokenEmbedding(Parameter table, Parameter positions, const LanguageShare& share,
                                               const UnitOptions& options) {
  return std::make_unique<Embedding>(std::move(table), std::move(positions), share, options);
}

}  // namespace muster::units
