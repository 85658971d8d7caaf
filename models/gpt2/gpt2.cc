#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/config.h"
#include "models/inventory_build.h"

namespace muster::models {
namespace {

using nlohmann::json;

struct Dimensions {
  uint32_t layers, heads, width, vocabulary, context;
};

// Radford et al. 2019, table 2; tiny is ours, for bytes as tokens.
Dimensions DimensionsOf(Gpt2Size size) {
  switch (size) {
    case GPT2_SIZE_TINY:
      return {4, 4, 128, 256, 128};
    case GPT2_SIZE_SMALL:
      return {12, 12, 768, 50257, 1024};
    case GPT2_SIZE_MEDIUM:
      return {24, 16, 1024, 50257, 1024};
    case GPT2_SIZE_LARGE:
      return {36, 20, 1280, 50257, 1024};
    case GPT2_SIZE_XL:
      return {48, 25, 1600, 50257, 1024};
    default:
      return {0, 0, 0, 0, 0};
  }
}

void AddNorm(Unit& unit, const std::string& name, uint64_t width) {
  AddTensor(unit, name + ".weight", {width}, Initialisation::ONES);
  AddTensor(unit, name + ".bias", {width}, Initialisation::ZEROS);
}

// Returns the weight.
Tensor& AddLinear(Unit& unit, const std::string& name, uint64_t in, uint64_t out, double standard_deviation) {
  AddTensor(unit, name + ".weight", {in, out}, Initialisation::NORMAL, standard_deviation)
      .set_linear(LINEAR_LAYOUT_IN_OUT);
  AddTensor(unit, name + ".bias", {out}, Initialisation::ZEROS);
  return *unit.mutable_tensors(unit.tensors_size() - 2);
}

// By outputs: axis `axis` of `out`, which splits them.
void AddColumns(Unit& unit, const std::string& name, uint64_t in, const std::vector<uint64_t>& out, uint32_t axis,
                const TensorShare& share) {
  uint64_t width = 1;
  for (const uint64_t n : out) width *= n;
  std::vector<uint64_t> view = {in};
  view.insert(view.end(), out.begin(), out.end());
  Cut(AddLinear(unit, name, in, width, kStandardDeviation), view, axis + 1, share);
  Cut(*unit.mutable_tensors(unit.tensors_size() - 1), out, axis, share);
}

// The bytes of a share's block; on a GPU as in MakeBlock.
void SetShareBytes(uint64_t c, uint64_t t, Device device, const TensorShare& share, Unit& unit) {
  const uint64_t own = c / share.ranks, parts = TokenParts(share);
  // Of all rows: what the second norm gives, and with sequence_parallel also what the GEMM by rows gives.
  unit.set_forward_bytes(4 * t * (share.sequence_parallel ? 2 * c + own : c));
  unit.set_forward_piece_bytes(16 * own);
  // What a norm gives, which becomes its own gradient; with sequence_parallel also that gradient's part, and the
  // gradient of what the GEMM by rows gave.
  uint64_t backward = share.sequence_parallel ? 2 * c + 2 * own : c;
  unit.set_backward_piece_bytes(2 * 16 * own);
  if (device == DEVICE_CUDA) {
    const uint64_t around = std::max(8 * own + c, 3 * own + 2 * c), gone = 4 * own + c / parts;
    backward = std::max(backward, around > gone ? around - gone : 0);
    unit.set_backward_piece_bytes(unit.backward_piece_bytes() + 4 * (4 * own + 2 * c) / kGpuTileRows);
  }
  unit.set_backward_bytes(4 * t * backward + (device == DEVICE_CUDA ? 4 * t * 3 * own / kGpuTileRows : 0));
}

// The keys and values of a block's own heads, and what its passes hold while attention computes. Forward: what the
// first norm gave, but not yet the hidden layer and the output. Backward: the gradients of attention's output and of q
// k v, but no longer the hidden layer and the sum after attention. On a GPU also attention's output once more, its
// gradient's sums, and the gradients of one run before they are added to those of the others (models/sequence.h).
void AddContext(const Gpt2& m, uint64_t own, Device device, const TensorShare& share, Unit& unit) {
  const auto stream = static_cast<int64_t>(m.width() / TokenParts(share)), heads = static_cast<int64_t>(own);
  AttentionElements forward{.own = -4 * heads}, backward{.own = 4 * heads - (4 * heads + stream)};
  if (device == DEVICE_CUDA) forward.own += heads, backward.own += 3 * heads, backward.whole += 2 * own;
  AddContextExchange(unit, m.context(), own, forward, backward, share);
}

Unit MakeBlock(const Gpt2& m, uint32_t layer, Device device, const TensorShare& share) {
  const uint64_t c = m.width(), all = m.context(), t = all / share.context_ranks, d = c / m.heads(),
                 heads = m.heads() / share.ranks;
  const uint64_t own = heads * d, parts = TokenParts(share);
  // Residual projections are scaled by 1/sqrt(residual layers), two a block (section 2.3).
  const double residual = kStandardDeviation / std::sqrt(2.0 * m.layers());
  Unit unit;
  unit.set_name(absl::StrCat("h.", layer));
  unit.set_kind("gpt2.block");
  unit.set_drops(true);
  unit.mutable_attention()->set_heads(static_cast<uint32_t>(heads));
  unit.mutable_attention()->set_width(static_cast<uint32_t>(d));
  const std::string at = unit.name() + ".";
  AddNorm(unit, at + "ln_1", c);
  AddColumns(unit, at + "attn.c_attn", c, {3, m.heads(), d}, 1, share);
  Cut(AddLinear(unit, at + "attn.c_proj", c, c, residual), {c, c}, 0, share);
  AddNorm(unit, at + "ln_2", c);
  AddColumns(unit, at + "mlp.c_fc", c, {4 * c}, 0, share);
  Cut(AddLinear(unit, at + "mlp.c_proj", 4 * c, c, residual), {4 * c, c}, 0, share);
  // 12 c^2 weights per token, and attention's two GEMMs over the causal half.
  unit.set_forward_flops(2.0 * t * 12 * c * own + 2.0 * 2 * own * t * all / 2);
  // Input, q k v, attention's output, the sum after it, the hidden layer before GELU; then each norm's mean and
  // deviation, and the softmax's log-sums. The reference by autograd keeps half as much again.
  unit.set_saved_bytes(4 * t * (c / parts + 3 * own + own + c / parts + 4 * own) + 4 * (4 * t / parts + t * heads));
  unit.set_piece_rows(HiddenPieceRows(4 * own, device, share));
  AddHiddenStates(unit, t, c, share);
  // The vectors: two norms' and the biases of the GEMMs by rows.
  AddBlockExchange(unit, t, c, share.sequence_parallel ? 6 * c : 0, share);
  // The inputs of the four GEMMs and the gradients of their outputs (Qi et al. 2024, table 1: 32 s b h bytes in 16
  // bits), and the gradients of vectors: of norms, and of the GEMMs' outputs. A share has all rows of what the norms
  // give and of what the GEMMs by rows do, as they were gathered: the second half exchanges nothing.
  unit.set_deferred_bytes(4 * t * (4 * c + 12 * own) + 4 * (6 * c + 7 * own));
  unit.set_weight_gradient_flops(2.0 * t * 12 * c * own);
  if (device == DEVICE_CUDA && share.context_ranks > 1) unit.set_backward_constant_bytes(RunMaskBytes(all, share));
  if (!share.whole()) {
    SetShareBytes(c, t, device, share, unit);
    AddContext(m, own, device, share, unit);
    return unit;
  }
  unit.set_forward_bytes(4 * t * c);                  // ln_2
  unit.set_forward_piece_bytes(16 * c);               // GELU
  unit.set_backward_piece_bytes(2 * 16 * c + 4 * c);  // GELU, the hidden layer's gradient, ln_2 or its gradient
  if (device == DEVICE_CUDA) {
    // Attention's backward: the gradients of its output and of q k v, the latter once more before they are joined, and
    // its sums; all less the hidden layer and the sum after attention, which are gone by then. The bias's sums.
    unit.set_backward_bytes(4 * t * (8 * c - 5 * c) + 4 * t * 3 * c / kGpuTileRows);
    unit.set_backward_piece_bytes(unit.backward_piece_bytes() + 4 * (4 + 2) * c / kGpuTileRows);
  }
  AddContext(m, own, device, share, unit);
  return unit;
}

absl::StatusOr<Gpt2> ResolveGpt2(const Gpt2& model) {
  Gpt2 m = model;
  if (m.has_size()) {
    const Dimensions s = DimensionsOf(m.size());
    if (s.layers == 0) return absl::InvalidArgumentError("size: not a size of gpt2");
    if (!m.has_layers()) m.set_layers(s.layers);
    if (!m.has_heads()) m.set_heads(s.heads);
    if (!m.has_width()) m.set_width(s.width);
    if (!m.has_vocabulary()) m.set_vocabulary(s.vocabulary);
    if (!m.has_context()) m.set_context(s.context);
  }
  // Token ids are 32 bits wide; the limits keep sizes that no machine holds from overflowing sums.
  absl::Status numbers = CheckNumbers({{"layers", m.has_layers(), m.layers(), 4096},
                                       {"heads", m.has_heads(), m.heads(), 65536},
                                       {"width", m.has_width(), m.width(), 1u << 20},
                                       {"vocabulary", m.has_vocabulary(), m.vocabulary(), 1u << 24},
                                       {"context", m.has_context(), m.context(), 1u << 20}},
                                      "a size (tiny, small, medium, large, xl) or all of layers, heads, width, "
                                      "vocabulary and context");
  if (!numbers.ok()) return numbers;
  if (m.width() % m.heads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads: ", m.heads(), " does not divide width ", m.width()));
  }
  return m;
}

Inventory MakeGpt2(const Gpt2& m, Device device, const TensorShare& share) {
  const uint64_t c = m.width(), t = m.context(), v = m.vocabulary();
  Inventory inventory;
  SetLanguageTask(inventory, v, t / share.context_ranks);

  Unit& embedding = AddTokenEmbedding(inventory, "gpt2.embedding", c, /*positions=*/true, share);
  Cut(AddTensor(embedding, "wte.weight", {v, c}, Initialisation::NORMAL, kStandardDeviation), {v, c}, 0, share);
  AddTensor(embedding, "wpe.weight", {t, c}, Initialisation::NORMAL, kStandardDeviation / 2);  // OpenAI's 0.01
  for (uint32_t layer = 0; layer < m.layers(); ++layer) *inventory.add_units() = MakeBlock(m, layer, device, share);
  Unit& head = AddLanguageHead(inventory, "gpt2.head", c, /*norm=*/2 * c, device, share);
  AddNorm(head, "ln_f", c);
  Borrow& borrow = *head.add_borrows();
  borrow.set_unit("embedding");
  borrow.set_tensor("wte.weight");
  return inventory;
}

// The causal mask, which older versions saved though it is no parameter.
bool IsMask(absl::string_view name) {
  return absl::EndsWith(name, ".attn.bias") || absl::EndsWith(name, ".attn.masked_bias");
}

constexpr char kPrefix[] = "transformer.";
constexpr uint32_t kEndOfText = 50256;  // of GPT-2's own vocabulary

class Gpt2Models final : public ModelFamily {
 public:
  std::string name() const override { return "gpt2"; }

  absl::StatusOr<Model> Resolve(const Model& model) const override {
    absl::StatusOr<Gpt2> gpt2 = ResolveGpt2(model.gpt2());
    if (!gpt2.ok()) return gpt2.status();
    Model resolved = model;
    *resolved.mutable_gpt2() = *std::move(gpt2);
    return resolved;
  }
  Inventory MakeInventory(const Model& resolved, Device device, const TensorShare& share) const override {
    return MakeGpt2(resolved.gpt2(), device, share);
  }
  absl::Status CheckTensorRanks(const Model& resolved, const TensorShare& share) const override {
    const Gpt2& m = resolved.gpt2();
    if (absl::Status s = CheckMultiple("heads", m.heads(), share); !s.ok()) return s;
    return CheckLanguageShare(m.vocabulary(), m.context(), share);
  }
  absl::Status CheckContextRanks(const Model& resolved, const TensorShare& share) const override {
    return CheckLanguageContext(resolved.gpt2().context(), share);
  }
  std::string Describe(const Model& model) const override {
    const Gpt2& m = model.gpt2();
    if (!m.has_size()) return absl::StrCat("gpt2 ", m.layers(), "x", m.width());
    return absl::StrCat("gpt2 ", absl::AsciiStrToLower(absl::StripPrefix(Gpt2Size_Name(m.size()), "GPT2_SIZE_")));
  }

  bool Reads(const json& config) const override {
    // OpenAI's own folders name no type.
    const json type = config.value("model_type", json());
    return type == "gpt2" || (type.is_null() && config.contains("n_embd"));
  }
  absl::StatusOr<Model> FromConfig(const json& config) const override {
    const std::pair<const char*, json> only[] = {{"tie_word_embeddings", true},
                                                 {"scale_attn_weights", true},
                                                 {"scale_attn_by_inverse_layer_idx", false},
                                                 {"add_cross_attention", false},
                                                 {"layer_norm_epsilon", 1e-5}};
    for (const auto& [key, value] : only) {
      if (absl::Status s = CheckOnly(config, key, value); !s.ok()) return s;
    }
    if (config.value("activation_function", json()) != "gelu_pytorch_tanh") {
      if (absl::Status s = CheckOnly(config, "activation_function", "gelu_new"); !s.ok()) return s;
    }
    const absl::StatusOr<uint32_t> width = ReadNumber(config, "n_embd");
    if (!width.ok()) return width.status();
    if (absl::Status s = CheckOnly(config, "n_inner", 4 * uint64_t{*width}); !s.ok()) return s;
    Model model;
    for (const auto& [field, key, set] : kNumbers) {
      // The first configurations used another name.
      const bool old = key == absl::string_view("n_positions") && !config.contains(key) && config.contains("n_ctx");
      const absl::StatusOr<uint32_t> number = ReadNumber(config, old ? "n_ctx" : key);
      if (!number.ok()) return number.status();
      (model.mutable_gpt2()->*set)(*number);
    }
    return model;
  }
  nlohmann::ordered_json ToConfig(const Model& resolved) const override {
    const Gpt2& model = resolved.gpt2();
    nlohmann::ordered_json config = {{"architectures", {"GPT2LMHeadModel"}},
                                     {"model_type", "gpt2"},
                                     {"n_layer", model.layers()},
                                     {"n_head", model.heads()},
                                     {"n_embd", model.width()},
                                     {"n_inner", nullptr},
                                     {"n_positions", model.context()},
                                     {"n_ctx", model.context()},
                                     {"vocab_size", model.vocabulary()},
                                     {"activation_function", "gelu_new"},
                                     {"layer_norm_epsilon", 1e-5},
                                     {"initializer_range", 0.02},
                                     {"attn_pdrop", 0.0},
                                     {"embd_pdrop", 0.0},
                                     {"resid_pdrop", 0.0},
                                     {"scale_attn_weights", true},
                                     {"tie_word_embeddings", true},
                                     {"torch_dtype", "float32"}};
    // Without them `transformers` uses GPT-2's ids, which a smaller vocabulary lacks.
    const bool own = model.vocabulary() > kEndOfText;
    config["bos_token_id"] = own ? nlohmann::ordered_json(kEndOfText) : nlohmann::ordered_json();
    config["eos_token_id"] = config["bos_token_id"];
    return config;
  }
  std::string ConfigKey(absl::string_view field) const override {
    for (const auto& [name, key, set] : kNumbers) {
      if (field == name) return key;
    }
    return "";
  }
  std::string StoredName(absl::string_view tensor) const override { return absl::StrCat(kPrefix, tensor); }
  std::string TensorName(const Model&, absl::string_view stored) const override {
    const absl::string_view name = absl::StripPrefix(stored, kPrefix);
    return IsMask(name) || name == "lm_head.weight" ? "" : std::string(name);  // the head is the embedding
  }

 private:
  struct Number {
    const char *field, *key;  // in the spec, in config.json
    void (Gpt2::*set)(uint32_t);
  };
  static constexpr Number kNumbers[] = {{"layers", "n_layer", &Gpt2::set_layers},
                                        {"heads", "n_head", &Gpt2::set_heads},
                                        {"width", "n_embd", &Gpt2::set_width},
                                        {"vocabulary", "vocab_size", &Gpt2::set_vocabulary},
                                        {"context", "n_positions", &Gpt2::set_context}};
};

}  // namespace

const ModelFamily& Gpt2Family() {
  static const auto& family = *new Gpt2Models;
  return family;
}

}  // namespace muster::models
