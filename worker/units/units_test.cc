// The chained units against a reference model in one graph of LibTorch's autograd: in float64, where rounding cannot
// mask a wrong formula, and in fp32, which takes other code paths on a CPU.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "models/inventory.h"
#include "worker/units/autograd.h"
#include "worker/units/unit.h"

// Of ATen/autocast_mode.h, which includes all of ATen and so takes longer to compile than these tests.
namespace at::autocast {
TORCH_API void set_autocast_enabled(at::DeviceType device_type, bool enabled);
TORCH_API void set_autocast_dtype(at::DeviceType device_type, at::ScalarType dtype);
TORCH_API void clear_cache();
}  // namespace at::autocast

namespace muster::units {
namespace {

struct Dimensions {
  uint32_t layers, heads, width, vocabulary, context;
  uint64_t piece_rows = 0;
};

Inventory Make(const Dimensions& shape) {
  Model model;
  Gpt2& g = *model.mutable_gpt2();
  g.set_layers(shape.layers), g.set_heads(shape.heads), g.set_width(shape.width);
  g.set_vocabulary(shape.vocabulary), g.set_context(shape.context);
  Inventory inventory = *models::MakeInventory(model);
  for (Unit& unit : *inventory.mutable_units()) unit.set_piece_rows(shape.piece_rows);
  return inventory;
}

// Numbers without a pattern that a transposed or shifted tensor would share.
at::Tensor Filled(at::IntArrayRef shape, at::ScalarType type, double seed) {
  at::Tensor t = at::empty(shape, at::kDouble);
  double* out = t.mutable_data_ptr<double>();
  for (int64_t i = 0; i < t.numel(); ++i) out[i] = 0.5 * std::sin(seed + 1.7 * static_cast<double>(i * i % 10'007));
  return t.to(type);
}

// Units over their own parameters, and what flows through them for each microbatch.
class Chain {
 public:
  Chain(const Inventory& inventory, at::ScalarType type, const UnitOptions& options = {}) {
    at::set_num_threads(1);  // threads that wait for each other are slow on a busy machine
    double seed = 0;
    for (const Unit& unit : inventory.units()) {
      for (const Tensor& tensor : unit.tensors()) {
        const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
        at::Tensor value = Filled(shape, type, ++seed);
        if (tensor.init().kind() == Initialisation::ONES) value.add_(1);
        parameters_[tensor.name()] = {value, at::zeros_like(value, value.options().dtype(Sink(type)))};
      }
    }
    for (const Unit& unit : inventory.units()) {
      std::vector<Parameter> own;
      for (const Tensor& tensor : unit.tensors()) own.push_back(parameters_.at(tensor.name()));
      for (const Borrow& borrow : unit.borrows()) own.push_back(parameters_.at(borrow.tensor()));
      units_.push_back(MakeUnit(inventory, unit, std::move(own), options).value());
    }
  }

  // One microbatch in flight; several may exist.
  struct Pass {
    Context context;
    std::vector<Saved> saved;
  };

  Activations Forward(Pass& pass) {
    const c10::AutoGradMode off(false);
    pass.context.loss_sum = at::zeros({}, at::kDouble);
    pass.saved.resize(units_.size());
    Activations flow;
    for (size_t u = 0; u < units_.size(); ++u) flow = units_[u]->Forward(pass.context, flow, pass.saved[u]);
    return flow;
  }

  // The loss summed over the targets.
  double Evaluate(Pass& pass) {
    EXPECT_TRUE(Forward(pass).empty());
    return pass.context.loss_sum.item<double>();
  }

  double Backward(Pass& pass) {
    const c10::AutoGradMode off(false);
    Activations flow;
    for (size_t u = units_.size(); u-- > 0;) {
      flow = units_[u]->Backward(pass.context, std::move(pass.saved[u]), flow);
    }
    EXPECT_TRUE(flow.empty());
    return pass.context.loss_sum.item<double>();
  }

  const std::map<std::string, Parameter>& parameters() const { return parameters_; }

 private:
  static at::ScalarType Sink(at::ScalarType type) { return WideType(type); }

  std::map<std::string, Parameter> parameters_;
  std::vector<std::unique_ptr<UnitModule>> units_;
};

Context Tokens(const Dimensions& shape, int64_t sequences, double scale, int64_t salt = 0) {
  at::Tensor ids = at::empty({sequences, shape.context + 1}, at::kLong);
  int64_t* out = ids.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) out[i] = (i * i * 31 + i * 7 + salt) % shape.vocabulary;
  Context context;
  context.batch.Set(models::kInputs, ids.narrow(1, 0, shape.context));
  context.batch.Set(models::kTargets, ids.narrow(1, 1, shape.context));
  context.loss_scale = scale;
  return context;
}

// The model by the definitions of its parts, none of which is the fused function that the units call.
class Reference {
 public:
  Reference(const Dimensions& shape, const std::map<std::string, Parameter>& parameters,
            at::ScalarType type = at::kDouble)
      : shape_(shape) {
    for (const auto& [name, p] : parameters) leaf_[name] = p.value.to(type, false, true).requires_grad_(true);
  }

  at::Tensor LogProbabilities(const at::Tensor& ids) const {
    const at::Tensor& wte = leaf_.at("wte.weight");
    at::Tensor x = wte.index_select(0, ids.reshape({-1})).view({ids.size(0), ids.size(1), -1}) +
                   leaf_.at("wpe.weight").narrow(0, 0, ids.size(1));
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) x = Block(x, "h." + std::to_string(layer) + ".");
    const at::Tensor logits = Norm(x, "ln_f").matmul(wte.t());
    const at::Tensor shifted = logits - logits.amax({-1}, true).detach();
    return shifted - shifted.exp().sum({-1}, true).log();
  }

  at::Tensor Loss(const Context& c) const {
    return -LogProbabilities(c.inputs()).gather(2, c.targets().unsqueeze(2)).sum();
  }

  // By the functions that PyTorch's users call, in bf16 as its autocast has it.
  at::Tensor AutocastLoss(const Context& c) const {
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor& wte = leaf_.at("wte.weight");
    at::Tensor x = at::embedding(wte, c.inputs()) + leaf_.at("wpe.weight").narrow(0, 0, c.inputs().size(1));
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) x = FusedBlock(x, "h." + std::to_string(layer) + ".");
    const at::Tensor logits = at::linear(FusedNorm(x, "ln_f"), wte);
    const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), c.targets().reshape({-1}), {}, /*sum*/ 2);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    return loss;
  }

  std::map<std::string, at::Tensor> GradientsOf(const at::Tensor& output) const {
    std::vector<at::Tensor> inputs;
    for (const auto& [name, leaf] : leaf_) inputs.push_back(leaf);
    const std::vector<at::Tensor> gradients = Gradients(output, at::ones({}, output.options()), inputs);
    std::map<std::string, at::Tensor> named;
    size_t i = 0;
    for (const auto& [name, leaf] : leaf_) named[name] = gradients[i++];
    return named;
  }

 private:
  at::Tensor Linear(const at::Tensor& x, const std::string& name) const {
    return x.matmul(leaf_.at(name + ".weight")) + leaf_.at(name + ".bias");
  }

  at::Tensor Norm(const at::Tensor& x, const std::string& name) const {
    const at::Tensor centred = x - x.mean({-1}, true);
    const at::Tensor variance = (centred * centred).mean({-1}, true);
    return centred / (variance + 1e-5).sqrt() * leaf_.at(name + ".weight") + leaf_.at(name + ".bias");
  }

  at::Tensor Attention(const at::Tensor& x, const std::string& name) const {
    const int64_t tokens = x.size(1), width = x.size(2), head = width / shape_.heads;
    const at::Tensor qkv = Linear(x, name + ".c_attn");
    const at::Tensor row = at::arange(tokens), future = row.unsqueeze(1) < row.unsqueeze(0);
    std::vector<at::Tensor> heads;
    at::Tensor out = at::zeros_like(x);
    for (int64_t h = 0; h < shape_.heads; ++h) {
      const at::Tensor q = qkv.narrow(2, h * head, head), k = qkv.narrow(2, width + h * head, head);
      const at::Tensor v = qkv.narrow(2, 2 * width + h * head, head);
      const at::Tensor scores = (q.matmul(k.transpose(1, 2)) / std::sqrt(static_cast<double>(head)))
                                    .masked_fill(future, -std::numeric_limits<double>::infinity());
      const at::Tensor weights = (scores - scores.amax({-1}, true).detach()).exp();
      out = out.slice_scatter((weights / weights.sum({-1}, true)).matmul(v), 2, h * head, (h + 1) * head);
    }
    return Linear(out, name + ".c_proj");
  }

  at::Tensor Block(const at::Tensor& in, const std::string& at) const {
    const at::Tensor x = in + Attention(Norm(in, at + "ln_1"), at + "attn");
    const at::Tensor h = Linear(Norm(x, at + "ln_2"), at + "mlp.c_fc");
    const at::Tensor gelu = 0.5 * h * (1 + (std::sqrt(2 / M_PI) * (h + 0.044715 * h * h * h)).tanh());
    return x + Linear(gelu, at + "mlp.c_proj");
  }

  at::Tensor FusedLinear(const at::Tensor& x, const std::string& name) const {
    return at::linear(x, leaf_.at(name + ".weight").t(), leaf_.at(name + ".bias"));
  }

  at::Tensor FusedNorm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {x.size(-1)}, leaf_.at(name + ".weight"), leaf_.at(name + ".bias"), 1e-5);
  }

  at::Tensor FusedBlock(const at::Tensor& in, const std::string& at) const {
    const at::Tensor qkv = FusedLinear(FusedNorm(in, at + "ln_1"), at + "attn.c_attn");
    const at::Tensor by_head = qkv.view({in.size(0), in.size(1), 3, shape_.heads, -1}).permute({2, 0, 3, 1, 4});
    const at::Tensor y = at::scaled_dot_product_attention(by_head[0], by_head[1], by_head[2], {}, 0, true);
    const at::Tensor x = in + FusedLinear(y.transpose(1, 2).reshape(in.sizes()), at + "attn.c_proj");
    const at::Tensor h = at::gelu(FusedLinear(FusedNorm(x, at + "ln_2"), at + "mlp.c_fc"), "tanh");
    return x + FusedLinear(h, at + "mlp.c_proj");
  }

  Dimensions shape_;
  std::map<std::string, at::Tensor> leaf_;
};

double Norm(const at::Tensor& t) { return std::sqrt(t.to(at::kDouble).square().sum().item<double>()); }

void ExpectGradients(const Chain& chain, const std::map<std::string, at::Tensor>& expected, double tolerance) {
  for (const auto& [name, p] : chain.parameters()) {
    const at::Tensor& right = expected.at(name);
    ASSERT_GT(Norm(right), 0) << name;
    EXPECT_LT(Norm(p.gradient - right), tolerance * Norm(right)) << name;
  }
}

const std::vector<Dimensions> kShapes = {
    {2, 2, 36, 61, 16},      // the engine's tests
    {1, 1, 5, 7, 3},         // odd everything
    {3, 4, 32, 256, 33},     // bytes
    {1, 2, 8, 3'011, 20},    // many logits
    {2, 2, 36, 61, 16, 11},  // rows in uneven blocks
    {2, 1, 4, 5, 6, 1},      // and one by one
    {1, 3, 12, 19, 150},     // more than one block of queries
};

struct Code {
  const char* name;
  bool portable;
  RowCode rows;
};
const Code kCodes[] = {{"the CPU's own code", false, RowCode::kVector},
                       {"the programs of GPUs", false, RowCode::kDevice},
                       {"the reference", true, RowCode::kVector}};

TEST(Units, EqualTheWholeGraphInDouble) {
  for (const Code& code : kCodes) {
    SCOPED_TRACE(code.name);
    for (const Dimensions& shape : kShapes) {
      Chain chain(Make(shape), at::kDouble, {code.portable, code.rows});
      const Reference reference(shape, chain.parameters());
      Chain::Pass pass{Tokens(shape, 3, 0.25), {}};
      const at::Tensor right = reference.Loss(pass.context);
      EXPECT_TRUE(chain.Forward(pass).empty());
      EXPECT_NEAR(chain.Backward(pass), right.item<double>(), 1e-11 * right.item<double>()) << shape.vocabulary;
      ExpectGradients(chain, reference.GradientsOf(right * 0.25), 1e-9);
    }
  }
}

// Both start from equal bf16 parameters. Each bf16 rounding is up to 0.4%; with weights as large as these, a gradient
// is off by up to 20 roundings. A wrong gradient is off by its own size.
TEST(Units, ComputeInBf16CloseToTheWholeGraph) {
  for (const Code& code : kCodes) {
    for (const Bf16Gemms gemms : {Bf16Gemms::kNative, Bf16Gemms::kPanels}) {
      SCOPED_TRACE(std::string(code.name) + (gemms == Bf16Gemms::kPanels ? ", through panels" : ", native"));
      for (const Dimensions& shape : kShapes) {
        Chain chain(Make(shape), at::kBFloat16, {code.portable, code.rows, gemms});
        const Reference reference(shape, chain.parameters());
        Chain::Pass pass{Tokens(shape, 3, 0.25), {}}, evaluate = pass;
        const at::Tensor right = reference.Loss(pass.context);
        chain.Forward(pass);
        const double loss = chain.Backward(pass);
        EXPECT_NEAR(loss, right.item<double>(), 0.01 * right.item<double>()) << shape.vocabulary;
        EXPECT_NE(loss, right.item<double>());
        ExpectGradients(chain, reference.GradientsOf(right * 0.25), 0.12);
        evaluate.context.mode = Mode::kEvaluate;
        EXPECT_NEAR(chain.Evaluate(evaluate), loss, 1e-6 * loss);
      }
    }
  }
}

// 11 bits instead of 8, and a scale without which the gradients would be below the least number of fp16.
TEST(Units, ComputeInFp16WithALossScale) {
  constexpr double kScale = 4096, kShare = 1.0 / (1 << 16);
  for (const Code& code : kCodes) {
    SCOPED_TRACE(code.name);
    for (const Dimensions& shape : kShapes) {
      Chain chain(Make(shape), at::kHalf, {code.portable, code.rows});
      const Reference reference(shape, chain.parameters());
      Chain::Pass pass{Tokens(shape, 3, kShare), {}};
      pass.context.gradient_scale = at::full({1}, kScale, at::kFloat);
      const at::Tensor right = reference.Loss(pass.context);
      chain.Forward(pass);
      EXPECT_NEAR(chain.Backward(pass), right.item<double>(), 2e-3 * right.item<double>()) << shape.vocabulary;
      ExpectGradients(chain, reference.GradientsOf(right * (kShare * kScale)), 0.03);
    }
  }
}

// Native GEMMs and those through panels round at the same points, so they part by single roundings only: by less than
// the distance of either from float64.
TEST(Units, InBf16GiveTheSameThroughPanels) {
  for (const Code& code : kCodes) {
    SCOPED_TRACE(code.name);
    for (const Dimensions& shape : kShapes) {
      Chain native(Make(shape), at::kBFloat16, {code.portable, code.rows, Bf16Gemms::kNative});
      Chain panels(Make(shape), at::kBFloat16, {code.portable, code.rows, Bf16Gemms::kPanels});
      Chain::Pass a{Tokens(shape, 3, 0.25), {}}, b = a;
      native.Forward(a), panels.Forward(b);
      const double loss = native.Backward(a);
      EXPECT_NEAR(panels.Backward(b), loss, 2e-3 * loss) << shape.vocabulary;
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, p] : native.parameters()) expected[name] = p.gradient;
      ExpectGradients(panels, expected, 0.05);
    }
  }
}

// As close to float64 as what PyTorch eager gives under autocast: over some models the errors of each tensor's
// gradient, relative to its size, and of the losses. One alone is a matter of luck.
class Bf16Units : public testing::TestWithParam<std::pair<RowCode, Bf16Gemms>> {};

TEST_P(Bf16Units, AreAsCloseToFloat64AsPyTorch) {
  double ours = 0, theirs = 0, our_loss = 0, their_loss = 0;
  for (const Dimensions& shape :
       {Dimensions{2, 2, 36, 61, 16}, Dimensions{3, 4, 32, 256, 33}, Dimensions{4, 4, 64, 256, 64},
        Dimensions{2, 2, 64, 1'009, 96}, Dimensions{1, 3, 12, 19, 150}}) {
    for (const int64_t salt : {0, 5, 11, 17}) {
      Chain chain(Make(shape), at::kBFloat16, {.rows = GetParam().first, .bf16_gemms = GetParam().second});
      const Reference exact(shape, chain.parameters()), eager(shape, chain.parameters(), at::kFloat);
      Chain::Pass pass{Tokens(shape, 2, 0.25, salt), {}};
      const at::Tensor right = exact.Loss(pass.context), other = eager.AutocastLoss(pass.context);
      chain.Forward(pass);
      const double loss = chain.Backward(pass), all = right.item<double>();
      our_loss += std::abs(loss / all - 1), their_loss += std::abs(other.item<double>() / all - 1);
      const auto gradients = exact.GradientsOf(right * 0.25), eager_gradients = eager.GradientsOf(other * 0.25);
      for (const auto& [name, p] : chain.parameters()) {
        const at::Tensor& g = gradients.at(name);
        ours += Norm(p.gradient - g) / Norm(g), theirs += Norm(eager_gradients.at(name) - g) / Norm(g);
      }
    }
  }
  EXPECT_LT(ours, 1.1 * theirs);
  EXPECT_LT(our_loss, 1.2 * their_loss);
}

INSTANTIATE_TEST_SUITE_P(Units, Bf16Units,
                         testing::Values(std::pair{RowCode::kVector, Bf16Gemms::kNative},
                                         std::pair{RowCode::kVector, Bf16Gemms::kPanels},
                                         std::pair{RowCode::kDevice, Bf16Gemms::kNative}));

TEST(Units, EqualTheWholeGraphInFloat) {
  for (const Code& code : kCodes) {
    SCOPED_TRACE(code.name);
    for (const Dimensions& shape : kShapes) {
      Chain chain(Make(shape), at::kFloat, {code.portable, code.rows}), exact(Make(shape), at::kDouble);
      const Reference reference(shape, exact.parameters());
      Chain::Pass pass{Tokens(shape, 3, 0.25), {}};
      const at::Tensor right = reference.Loss(pass.context);
      chain.Forward(pass);
      EXPECT_NEAR(chain.Backward(pass), right.item<double>(), 1e-5 * right.item<double>()) << shape.vocabulary;
      ExpectGradients(chain, reference.GradientsOf(right * 0.25), 2e-4);
    }
  }
}

// Of units that are autograd's. The parameters' gradients are the same.
TEST(Units, TheFirstTrainedOneSparesTheGradientOfItsInput) {
  const Dimensions& shape = kShapes[0];
  const Inventory inventory = Make(shape);
  const Unit& block = inventory.units(1);
  const int64_t context_length = shape.context, width = shape.width;
  const at::Tensor x = Filled({2, context_length, width}, at::kFloat, 100), d = Filled(x.sizes(), at::kFloat, 200);
  std::map<bool, std::vector<at::Tensor>> gradients;
  for (const bool wanted : {true, false}) {
    std::vector<Parameter> parameters;
    for (const Tensor& tensor : block.tensors()) {
      const std::vector<int64_t> sizes(tensor.shape().begin(), tensor.shape().end());
      const at::Tensor value = Filled(sizes, at::kFloat, static_cast<double>(parameters.size()));
      parameters.push_back({value, gradients[wanted].emplace_back(at::zeros_like(value))});
    }
    const auto unit = MakeUnit(inventory, block, std::move(parameters), {.portable = true}).value();
    Context context;
    context.input_gradient = wanted;
    Saved saved;
    unit->Forward(context, {x}, saved);
    EXPECT_EQ(unit->Backward(context, std::move(saved), {d}).size(), wanted ? 1u : 0u);
  }
  for (size_t i = 0; i < gradients[true].size(); ++i) {
    EXPECT_GT(Norm(gradients[true][i]), 0);
    EXPECT_TRUE(gradients[false][i].equal(gradients[true][i])) << block.tensors(static_cast<int>(i)).name();
  }
}

// Schedules may keep several microbatches in flight; each one's gradient enters once.
TEST(Units, MicrobatchesMayBeOnTheirWayTogether) {
  const Dimensions& shape = kShapes[0];
  Chain chain(Make(shape), at::kDouble);
  const Reference reference(shape, chain.parameters());
  Chain::Pass a{Tokens(shape, 2, 0.5), {}}, b{Tokens(shape, 1, 0.5, 5), {}};
  chain.Forward(a);
  chain.Forward(b);
  chain.Backward(b);
  chain.Backward(a);
  ExpectGradients(chain, reference.GradientsOf((reference.Loss(a.context) + reference.Loss(b.context)) * 0.5), 1e-9);
}

TEST(Units, EvaluationGivesTheLossOfTrainingAndKeepsNothing) {
  for (const RowCode rows : {RowCode::kVector, RowCode::kDevice}) {
    for (const Dimensions& shape : kShapes) {
      Chain chain(Make(shape), at::kDouble, {.rows = rows});
      Chain::Pass train{Tokens(shape, 3, 1), {}}, evaluate = train;
      evaluate.context.mode = Mode::kEvaluate;
      chain.Forward(train);
      const double loss = chain.Backward(train);
      EXPECT_NEAR(chain.Evaluate(evaluate), loss, 1e-12 * loss);
      for (const Saved& saved : evaluate.saved) EXPECT_TRUE(saved.tensors.empty());
    }
  }
}

TEST(Units, WithoutTargetsTheHeadGivesTheLastTokensLogits) {
  const Dimensions& shape = kShapes[0];
  Chain chain(Make(shape), at::kDouble);
  const Reference reference(shape, chain.parameters());
  Chain::Pass pass{Tokens(shape, 2, 1), {}};
  pass.context.mode = Mode::kEvaluate;
  pass.context.batch.Set(models::kTargets, at::Tensor());
  pass.context.batch.Set(models::kInputs,
                         pass.context.inputs().narrow(1, 0, 7));  // a prompt is shorter than the context
  const at::Tensor logits = chain.Forward(pass)[0];
  const at::Tensor ours = logits.log_softmax(1), right = reference.LogProbabilities(pass.context.inputs()).select(1, 6);
  EXPECT_LT(Norm(ours - right), 1e-10 * Norm(right));
}

// Token by token or several at a time with the KV cache gives the logits of the whole text.
TEST(Units, GeneratingGivesTheLogitsOfTheWhole) {
  std::vector<Dimensions> shapes = kShapes;
  shapes.push_back({1, 1, 2, 11, 600});  // more than there is room for at first
  for (const Dimensions& shape : shapes) {
    // In turns: attention here is the same for both.
    Chain chain(Make(shape), at::kDouble, {.rows = shape.heads == 2 ? RowCode::kDevice : RowCode::kVector});
    const Reference reference(shape, chain.parameters());
    const at::Tensor ids = Tokens(shape, 2, 1).inputs();
    const at::Tensor right = reference.LogProbabilities(ids);
    for (const int64_t most : shape.context > 200 ? std::vector<int64_t>{150} : std::vector<int64_t>{1, 2, 40}) {
      Chain::Pass pass;
      pass.context.mode = Mode::kGenerate;
      for (int64_t first = 0; first < ids.size(1); first += pass.context.inputs().size(1)) {
        pass.context.position = first;
        pass.context.batch.Set(models::kInputs, ids.narrow(1, first, std::min(most, ids.size(1) - first)));
        const at::Tensor ours = chain.Forward(pass)[0].log_softmax(1);
        const at::Tensor theirs = right.select(1, first + pass.context.inputs().size(1) - 1);
        EXPECT_LT(Norm(ours - theirs), 1e-9 * Norm(theirs)) << "token " << first << ", " << most << " at a time";
      }
    }
  }
}

TEST(Units, AKindWithoutCodeOrWithOtherTensorsIsRefused) {
  Inventory inventory;
  Unit unit;
  unit.set_name("x");
  EXPECT_EQ(MakeUnit(inventory, unit, {}).status().message(),
            "unit x is of the family '', which this build does not have");
  for (const char* family : {"gpt2", "llama"}) {
    inventory.set_family(family);
    unit.set_kind("else");
    EXPECT_EQ(MakeUnit(inventory, unit, {}).status().code(), absl::StatusCode::kUnimplemented);
  }
  unit.add_tensors();
  EXPECT_EQ(MakeUnit(inventory, unit, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster::units
