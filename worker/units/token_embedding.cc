#include <ATen/ops/embedding.h>
#include <ATen/ops/index_add.h>

#include <utility>

#include "worker/units/language.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

// table[id] += row for each row, in order: one pass without a [vocabulary, width] temporary, the same bits every time.
void AddRows(const at::Tensor& ids, const at::Tensor& rows, const at::Tensor& table) {
  if (!table.is_cpu() || table.scalar_type() != at::kFloat) {
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
  Embedding(Parameter table, Parameter positions, const UnitOptions& options)
      : table_(std::move(table)),
        positions_(std::move(positions)),
        index_(options.index),
        flow_(WideType(table_.value.scalar_type())) {}

  Activations Forward(const Context& context, const Activations&, Saved&) override {
    const int64_t tokens = context.inputs().size(1);
    at::Tensor rows = at::embedding(table_.value, context.inputs()).to(flow_);
    if (positions_.value.defined()) rows.add_(positions_.value.narrow(0, context.position, tokens));
    Drop(context, rows);
    return {rows};
  }

  Activations Backward(const Context& context, Saved, const Activations& grads) override {
    at::Tensor dx = grads[0].to(WideType(table_.value.scalar_type()));
    if (context.dropout.embedding > 0) {
      dx = dx.clone(at::MemoryFormat::Contiguous);
      Drop(context, dx);
    }
    if (table_.gradient.defined()) {
      AddRows(context.inputs().contiguous().view(-1), dx.contiguous().view({-1, dx.size(2)}), table_.gradient);
    }
    if (positions_.gradient.defined()) positions_.gradient.narrow(0, 0, dx.size(1)).add_(dx.sum(0));
    return {};
  }

 private:
  // rows [samples, tokens, width]
  void Drop(const Context& context, const at::Tensor& rows) const {
    const DropoutRates& dropout = context.dropout;
    DropRows(dropout.At(dropout.embedding, index_, 0), rows.size(1), 0, rows.view({-1, rows.size(2)}));
  }

  const Parameter table_, positions_;
  const int index_;
  const at::ScalarType flow_;  // dtype of its output
};

}  // namespace

std::unique_ptr<UnitModule> MakeTokenEmbedding(Parameter table, Parameter positions, const UnitOptions& options) {
  return std::make_unique<Embedding>(std::move(table), std::move(positions), options);
}

}  // namespace muster::units
