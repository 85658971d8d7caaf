#include <ATen/ops/embedding.h>
#include <ATen/ops/index_add.h>

#include "worker/units/gpt2.h"
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
  explicit Embedding(const std::vector<Parameter>& p)
      : wte_(p[0]), wpe_(p[1]), flow_(WideType(wte_.value.scalar_type())) {}

  Activations Forward(const Context& context, const Activations&, Saved&) override {
    const int64_t tokens = context.inputs.size(1);
    return {at::embedding(wte_.value, context.inputs).to(flow_).add_(wpe_.value.narrow(0, context.position, tokens))};
  }

  Activations Backward(const Context& context, Saved, const Activations& grads) override {
    const at::Tensor dx = grads[0].to(wte_.gradient.scalar_type());
    AddRows(context.inputs.contiguous().view(-1), dx.contiguous().view({-1, dx.size(2)}), wte_.gradient);
    wpe_.gradient.narrow(0, 0, dx.size(1)).add_(dx.sum(0));
    return {};
  }

 private:
  const Parameter wte_, wpe_;
  const at::ScalarType flow_;  // dtype of its output
};

}  // namespace

std::unique_ptr<UnitModule> MakeGpt2Embedding(const std::vector<Parameter>& parameters) {
  return std::make_unique<Embedding>(parameters);
}

}  // namespace muster::units
