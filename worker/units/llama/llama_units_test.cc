// Llama's fused units against those by LibTorch's operators and autograd, whose whole model tests/parity compares with
// Hugging Face's.
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "models/inventory.h"
#include "worker/units/unit.h"

namespace muster::units {
namespace {

constexpr int64_t kSequences = 2, kContext = 70;  // more than a block of attention's queries

Model Variant(const std::function<void(Llama&)>& change) {
  Model model;
  Llama& m = *model.mutable_llama();
  m.set_layers(1), m.set_heads(4), m.set_key_value_heads(2), m.set_width(20), m.set_head_width(6), m.set_inner(27);
  m.set_vocabulary(19), m.set_context(kContext);
  change(m);
  return *models::Resolve(model);
}

const std::vector<std::pair<std::string, Model>>& Variants() {
  static const auto& all = *new std::vector<std::pair<std::string, Model>>{
      {"llama", Variant([](Llama&) {})},
      {"one key and value head", Variant([](Llama& m) { m.set_key_value_heads(1), m.set_tied_head(true); })},
      {"as many", Variant([](Llama& m) { m.set_key_value_heads(4); })},
      {"biases", Variant([](Llama& m) { m.set_qkv_bias(true); })},
      {"norms of heads", Variant([](Llama& m) { m.set_qk_norm(true); })},
      {"a window of one", Variant([](Llama& m) { m.set_window(1); })},
      {"a window of less than a block", Variant([](Llama& m) { m.set_window(5), m.set_qk_norm(true); })},
      {"a window of more than a block", Variant([](Llama& m) { m.set_window(66); })},
      {"a window of all but one", Variant([](Llama& m) { m.set_window(kContext - 1); })},
      {"a window of all", Variant([](Llama& m) { m.set_window(kContext); })},
      {"a layer without its window", Variant([](Llama& m) { m.set_window(3), m.add_full_layers(0); })},
      {"aligned, so that weights lie together",
       Variant([](Llama& m) { m.set_width(32), m.set_head_width(8), m.set_inner(48), m.set_qkv_bias(true); })},
  };
  return all;
}

// The units of a model, whose parameters lie in one buffer as in the engine, and a pass through them.
class LlamaChain {
 public:
  LlamaChain(const Model& model, at::ScalarType dtype, bool portable) : inventory_(*models::MakeInventory(model)) {
    for (Unit& unit : *inventory_.mutable_units()) unit.set_piece_rows(33);
    const at::ScalarType wide = WideType(dtype);
    std::vector<Parameter> table;
    for (const Unit& unit : inventory_.units()) {
      uint64_t elements = 0;
      for (const Tensor& tensor : unit.tensors()) elements += models::Elements(tensor);
      const auto n = static_cast<int64_t>(elements);
      // The same numbers for each chain, near those of training.
      const at::Tensor values = at::arange(n, at::kDouble).mul(0.7).sin().mul(0.3).to(dtype), sink = at::zeros(n, wide);
      std::vector<Parameter> own;
      int64_t at = 0;
      for (const Tensor& tensor : unit.tensors()) {
        const auto count = static_cast<int64_t>(models::Elements(tensor));
        const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
        own.push_back({values.narrow(0, at, count).view(shape), sink.narrow(0, at, count).view(shape)});
        at += count;
      }
      if (unit.name() == "embedding") table = own;
      sinks_.push_back(sink);
      if (unit.borrows_size() > 0) own.push_back(table[0]);
      units_.push_back(MakeUnit(inventory_, unit, own, {.portable = portable}).value());
    }
  }

  Context MakeContext(Mode mode) const {
    Context context;
    context.mode = mode;
    const at::Tensor ids =
        at::arange(kSequences * (kContext + 1), at::kLong).mul(7).remainder(19).view({kSequences, kContext + 1});
    context.batch.Set(models::kInputs, ids.narrow(1, 0, kContext));
    context.batch.Set(models::kTargets, ids.narrow(1, 1, kContext));
    context.loss_scale = 1.0 / (kSequences * kContext);
    context.loss_sum = at::zeros({}, at::kDouble);
    return context;
  }

  // The loss; adds the gradients.
  double Step(bool recompute) {
    Context context = MakeContext(Mode::kTrain);
    std::vector<Saved> saved(units_.size());
    std::vector<Activations> inputs;
    Activations flow;
    for (size_t u = 0; u < units_.size(); ++u) {
      inputs.push_back(flow);
      flow = units_[u]->Forward(context, flow, saved[u]);
    }
    if (recompute) {
      context.mode = Mode::kRecompute;
      saved[1] = {};
      units_[1]->Forward(context, inputs[1], saved[1]);
    }
    for (size_t u = units_.size(); u-- > 0;) flow = units_[u]->Backward(context, std::move(saved[u]), flow);
    return context.loss_sum.item<double>();
  }
  double Evaluate() {
    const Context context = MakeContext(Mode::kEvaluate);
    Activations flow;
    Saved none;
    for (const auto& unit : units_) flow = unit->Forward(context, flow, none);
    return context.loss_sum.item<double>();
  }
  // After the last token, computed so many tokens at a time.
  at::Tensor Logits(int64_t most) {
    std::vector<Saved> kept(units_.size());
    Activations flow;
    for (int64_t first = 0; first < kContext; first += most) {
      Context context = MakeContext(Mode::kGenerate);
      context.batch.Set(models::kTargets, at::Tensor());
      context.position = first;
      context.batch.Set(models::kInputs, context.inputs().narrow(1, first, std::min(most, kContext - first)));
      flow.clear();
      for (size_t u = 0; u < units_.size(); ++u) flow = units_[u]->Forward(context, flow, kept[u]);
    }
    return flow[0];
  }
  const std::vector<at::Tensor>& sinks() const { return sinks_; }

 private:
  Inventory inventory_;
  std::vector<std::unique_ptr<UnitModule>> units_;
  std::vector<at::Tensor> sinks_;
};

double Error(const at::Tensor& seen, const at::Tensor& right) {
  return (seen.to(at::kDouble).sub(right.to(at::kDouble)).norm().item<double>()) / right.norm().item<double>();
}

TEST(LlamaUnits, TrainAsTheOperatorsDo) {
  for (const auto& [name, model] : Variants()) {
    LlamaChain reference(model, at::kDouble, true), fused(model, at::kDouble, false);
    const double right = reference.Step(false);
    EXPECT_GT(right, 100) << name;
    EXPECT_NEAR(fused.Step(false) / right, 1, 1e-12) << name;
    for (size_t u = 0; u < fused.sinks().size(); ++u) {
      EXPECT_GT(reference.sinks()[u].norm().item<double>(), 1e-3) << name << ", unit " << u;
      EXPECT_LT(Error(fused.sinks()[u], reference.sinks()[u]), 1e-11) << name << ", unit " << u;
    }
    EXPECT_NEAR(fused.Evaluate() / right, 1, 1e-12) << name;
  }
}

TEST(LlamaUnits, AWindowNarrowerThanTheContextChangesTheLossAndAWiderOneDoesNot) {
  const auto loss = [](const std::function<void(Llama&)>& change, bool portable) {
    return LlamaChain(Variant(change), at::kDouble, portable).Evaluate();
  };
  for (const bool portable : {false, true}) {
    const double whole = loss([](Llama&) {}, portable);
    for (const uint32_t window : {1u, 5u, 69u}) {
      EXPECT_GT(std::abs(loss([&](Llama& m) { m.set_window(window); }, portable) / whole - 1), 1e-9) << window;
    }
    for (const uint32_t window : {70u, 71u, 4096u}) {
      EXPECT_EQ(loss([&](Llama& m) { m.set_window(window); }, portable), whole) << window;
    }
    EXPECT_EQ(loss([](Llama& m) { m.set_window(5), m.add_full_layers(0); }, portable), whole);
  }
}

TEST(LlamaUnits, RecomputingChangesNoBit) {
  for (const auto& [name, model] : Variants()) {
    LlamaChain kept(model, at::kFloat, false), again(model, at::kFloat, false);
    EXPECT_EQ(kept.Step(false), again.Step(true)) << name;
    for (size_t u = 0; u < kept.sinks().size(); ++u) EXPECT_TRUE(kept.sinks()[u].equal(again.sinks()[u])) << name;
  }
}

// bf16 keeps 8 bits and fp16 11, so two orders of rounding differ by a few of the last.
TEST(LlamaUnits, InNarrowTypesTheGradientsAreNear) {
  for (const auto& [dtype, limit] : {std::pair(at::kBFloat16, 5e-2), std::pair(at::kHalf, 8e-3)}) {
    for (const auto& [name, model] : Variants()) {
      LlamaChain reference(model, at::kFloat, false), narrow(model, dtype, false);
      EXPECT_NEAR(narrow.Step(false) / reference.Step(false), 1, 0.4 * limit) << name;
      for (size_t u = 0; u < narrow.sinks().size(); ++u) {
        EXPECT_LT(Error(narrow.sinks()[u], reference.sinks()[u]), limit) << name << ", " << dtype << ", unit " << u;
      }
    }
  }
}

TEST(LlamaUnits, GeneratingGivesTheLogitsOfTheWhole) {
  for (const auto& [name, model] : Variants()) {
    LlamaChain reference(model, at::kDouble, true), fused(model, at::kDouble, false);
    const at::Tensor right = reference.Logits(kContext);
    for (const int64_t most : {1, 3, 70}) {
      EXPECT_LT(Error(fused.Logits(most), right), 1e-11) << name << ", " << most << " at a time";
      EXPECT_LT(Error(reference.Logits(most), right), 1e-11) << name << ", " << most << " at a time";
    }
  }
}

}  // namespace
}  // namespace muster::units
