// Blocks with adapters against blocks whose weights have them merged in: W + scale A^T B^T, or its transpose (Hu et al.
// 2021, section 4.1). What the gradients of A and B are follows from that of the merged weight.
#include "worker/units/low_rank.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/inventory.h"
#include "worker/units/float64_test.h"
#include "worker/units/unit.h"

namespace muster::units {
namespace {

Train Gpt2Job() {
  Train train;
  Gpt2& m = *train.mutable_model()->mutable_gpt2();
  m.set_layers(1), m.set_heads(3), m.set_width(12), m.set_vocabulary(19), m.set_context(9);
  return train;
}

Train LlamaJob() {
  Train train;
  Llama& m = *train.mutable_model()->mutable_llama();
  m.set_layers(1), m.set_heads(4), m.set_key_value_heads(2), m.set_width(16), m.set_head_width(6), m.set_inner(21);
  m.set_qkv_bias(true), m.set_vocabulary(19), m.set_context(9);
  return train;
}

void GiveAdapters(Train& train) {
  train.mutable_lora()->set_rank(3);
  train.mutable_lora()->set_alpha(2);
}

// A model's only block.
struct AdaptedBlock {
  std::map<std::string, Parameter> parameters;
  std::unique_ptr<UnitModule> module;

  AdaptedBlock(const Train& train, const UnitOptions& options, at::ScalarType type,
               const std::map<std::string, at::Tensor>& values) {
    const Inventory inventory = models::MakeInventory(train).value();
    const Unit& unit = inventory.units(1);
    std::vector<Parameter> all;
    for (const Tensor& tensor : unit.tensors()) {
      const at::Tensor value = values.at(tensor.name()).to(type).contiguous();
      const bool trained = !tensor.frozen() || tensor.shape_size() < 2;
      all.push_back({value, trained ? at::zeros(value.sizes(), WideType(type)) : at::Tensor()});
      parameters[tensor.name()] = all.back();
    }
    module = MakeUnit(inventory, unit, all, options).value();
  }

  std::pair<at::Tensor, at::Tensor> Run(const at::Tensor& x, const at::Tensor& d) {
    const c10::AutoGradMode off(false);
    Context context;
    context.samples = x.size(0);
    Saved saved;
    const Activations y = module->Forward(context, {x}, saved);
    return {y[0].clone(), module->Backward(context, std::move(saved), {d.clone()})[0]};
  }
};

struct Way {
  const char* name;
  UnitOptions options;
};
std::vector<Way> Ways() {
  return {{"fused", {}}, {"portable", {.portable = true}}, {"programs of GPUs", {.rows = RowCode::kDevice}}};
}

TEST(LowRank, AnAdapterIsAChangeOfItsWeight) {
  for (Train train : {Gpt2Job(), LlamaJob()}) {
    const Train whole = train;
    GiveAdapters(train);
    const Inventory inventory = models::MakeInventory(train).value();
    std::map<std::string, at::Tensor> values, merged;
    int seed = 1;
    for (const Tensor& tensor : inventory.units(1).tensors()) {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      values[tensor.name()] = NormalNumbers(shape, at::kDouble, ++seed, 0.3);
    }
    merged = values;
    int adapted = 0;
    for (const Tensor& tensor : inventory.units(1).tensors()) {
      if (!tensor.has_low_rank()) continue;
      const LowRank& low = tensor.low_rank();
      EXPECT_DOUBLE_EQ(low.scale(), 2.0 / 3);
      const at::Tensor change = values.at(low.b()).matmul(values.at(low.a())) * low.scale();  // [out, in]
      merged[tensor.name()] =
          values.at(tensor.name()) + (tensor.linear() == LINEAR_LAYOUT_IN_OUT ? change.t() : change);
      ++adapted;
    }
    EXPECT_GE(adapted, 4);
    const int64_t width = static_cast<int64_t>(inventory.units(1).tensors(0).shape(0));
    const at::Tensor x = NormalNumbers({2, 9, width}, at::kDouble, 100),
                     d = NormalNumbers({2, 9, width}, at::kDouble, 101);
    AdaptedBlock right(whole, {.portable = true}, at::kDouble, merged);
    const auto [right_y, right_dx] = right.Run(x, d);
    for (const Way& way : Ways()) {
      SCOPED_TRACE(way.name);
      AdaptedBlock block(train, way.options, at::kDouble, values);
      const auto [y, dx] = block.Run(x, d);
      EXPECT_LT((y - right_y).abs().max().item<double>(), 1e-12);
      EXPECT_LT((dx - right_dx).abs().max().item<double>(), 1e-11);
      for (const Tensor& tensor : inventory.units(1).tensors()) {
        if (!tensor.has_low_rank()) continue;
        const LowRank& low = tensor.low_rank();
        EXPECT_FALSE(block.parameters.at(tensor.name()).gradient.defined()) << "its weight is frozen";
        const at::Tensor given = right.parameters.at(tensor.name()).gradient,
                         dw = tensor.linear() == LINEAR_LAYOUT_IN_OUT ? given.t() : given;
        const at::Tensor da = values.at(low.b()).t().matmul(dw) * low.scale(),
                         db = dw.matmul(values.at(low.a()).t()) * low.scale();
        EXPECT_LT((block.parameters.at(low.a()).gradient - da).abs().max().item<double>(), 1e-11) << low.a();
        EXPECT_LT((block.parameters.at(low.b()).gradient - db).abs().max().item<double>(), 1e-11) << low.b();
      }
      // In the narrow types, by the same code.
      for (const auto& [type, limit] : {std::pair(at::kBFloat16, 0.1), std::pair(at::kHalf, 0.01)}) {
        AdaptedBlock narrow(train, way.options, type, values);
        const auto [ny, ndx] = narrow.Run(x.to(at::kFloat), d.to(at::kFloat));
        EXPECT_LT((ny - right_y).norm().item<double>(), limit * right_y.norm().item<double>()) << type;
        EXPECT_LT((ndx - right_dx).norm().item<double>(), limit * right_dx.norm().item<double>()) << type;
      }
    }
  }
}

}  // namespace
}  // namespace muster::units
