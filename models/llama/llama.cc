#include "models/llama/llama.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "models/inventory.h"
#include "models/inventory_build.h"
#include "models/llama/config.h"

namespace muster::models {
namespace {

// The published sizes: meta-llama's config.json of each. Llama 3.1 and 3.2 turn positions by base 500,000, scaled for a
// context of 131,072 from 8,192; a job's own context is shorter unless it says so.
std::optional<Llama> NumbersOf(LlamaSize size) {
  Llama m;
  const auto set = [&](uint32_t layers, uint32_t heads, uint32_t key_value_heads, uint32_t width, uint32_t inner,
                       uint32_t vocabulary, uint32_t context) {
    m.set_layers(layers), m.set_heads(heads), m.set_key_value_heads(key_value_heads), m.set_width(width);
    m.set_inner(inner), m.set_vocabulary(vocabulary), m.set_context(context);
  };
  switch (size) {
    case LLAMA_SIZE_TINY:
      set(4, 4, 2, 128, 384, 256, 128);
      return m;
    case LLAMA_SIZE_1B:
      set(16, 32, 8, 2048, 8192, 128256, 8192);
      break;
    case LLAMA_SIZE_3B:
      set(28, 24, 8, 3072, 8192, 128256, 8192);
      break;
    case LLAMA_SIZE_8B:
      set(32, 32, 8, 4096, 14336, 128256, 8192);
      break;
    case LLAMA_SIZE_70B:
      set(80, 64, 8, 8192, 28672, 128256, 8192);
      break;
    default:
      return std::nullopt;
  }
  const bool small = size == LLAMA_SIZE_1B || size == LLAMA_SIZE_3B;
  m.set_tied_head(small);
  m.set_rope_base(500'000);
  RopeScaling& scaling = *m.mutable_rope_scaling();
  scaling.set_kind(ROPE_SCALING_KIND_LLAMA3);
  scaling.set_factor(small ? 32 : 8);
  scaling.set_original_context(8192);
  scaling.set_low_frequency_factor(1);
  scaling.set_high_frequency_factor(4);
  return m;
}

absl::Status ResolveScaling(Llama& m) {
  if (!m.has_rope_scaling()) return absl::OkStatus();
  RopeScaling& scaling = *m.mutable_rope_scaling();
  const auto error = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat("rope_scaling.", what...)); };
  if (scaling.kind() == ROPE_SCALING_KIND_UNSPECIFIED)
    return error("kind: missing; known: linear, llama3, yarn, dynamic, longrope");
  if (!scaling.has_factor()) return error("factor: missing");
  if (!(scaling.factor() >= 1 && scaling.factor() <= 1e6)) {
    return error("factor: must be 1 to 1e6, got ", scaling.factor());
  }
  const bool llama3 = scaling.kind() == ROPE_SCALING_KIND_LLAMA3, yarn = scaling.kind() == ROPE_SCALING_KIND_YARN;
  const bool longrope = scaling.kind() == ROPE_SCALING_KIND_LONGROPE;
  if (scaling.kind() != ROPE_SCALING_KIND_LINEAR && scaling.original_context() == 0) {
    return error("original_context: missing");
  }
  if (scaling.kind() == ROPE_SCALING_KIND_DYNAMIC && m.head_width() == 2) {
    return error("kind: dynamic stretches a head's low frequencies, and one of head_width 2 has none");
  }
  for (const auto& [field, factors] :
       {std::pair("short_factors", &scaling.short_factors()), std::pair("long_factors", &scaling.long_factors())}) {
    if (!longrope && !factors->empty()) return error(field, ": of kind longrope only");
    if (!longrope) continue;
    if (factors->size() != static_cast<int>(m.head_width() / 2)) {
      return error(field, ": must be ", m.head_width() / 2, " numbers, half of head_width, got ", factors->size());
    }
    for (const double x : *factors) {
      if (!(x > 0 && x <= 1e6)) return error(field, ": must be greater than 0 and at most 1e6, got ", x);
    }
  }
  if (longrope && !scaling.has_attention_factor()) {
    // sqrt(1 + ln(factor) / ln(original_context)) of 1 token would have no meaning.
    if (scaling.original_context() == 1) return error("original_context: must be more than 1");
    scaling.set_attention_factor(std::sqrt(1 + std::log(scaling.factor()) / std::log(scaling.original_context())));
  }
  if (llama3) {
    if (!scaling.has_low_frequency_factor()) scaling.set_low_frequency_factor(1);
    if (!scaling.has_high_frequency_factor()) scaling.set_high_frequency_factor(4);
    if (!(scaling.low_frequency_factor() > 0 && scaling.high_frequency_factor() > scaling.low_frequency_factor())) {
      return error("high_frequency_factor: must be greater than low_frequency_factor, which must be greater than 0");
    }
  }
  if (yarn) {
    if (!scaling.has_beta_fast()) scaling.set_beta_fast(32);
    if (!scaling.has_beta_slow()) scaling.set_beta_slow(1);
    if (!scaling.has_attention_factor()) scaling.set_attention_factor(0.1 * std::log(scaling.factor()) + 1);
    if (!(scaling.beta_slow() > 0 && scaling.beta_fast() > scaling.beta_slow())) {
      return error("beta_fast: must be greater than beta_slow, which must be greater than 0");
    }
  }
  if (scaling.has_attention_factor() && !(yarn || longrope))
    return error("attention_factor: of yarn and longrope only");
  if ((yarn || longrope) && !(scaling.attention_factor() > 0 && scaling.attention_factor() <= 100)) {
    return error("attention_factor: must be greater than 0 and at most 100");
  }
  return absl::OkStatus();
}

absl::Status CheckFullLayers(const Llama& m) {
  const auto error = [](auto... what) { return absl::InvalidArgumentError(absl::StrCat("full_layers: ", what...)); };
  if (m.full_layers_size() > 0 && !m.has_window())
    return error("without window every layer attends to all; give window");
  for (int i = 0; i < m.full_layers_size(); ++i) {
    const uint32_t layer = m.full_layers(i);
    if (layer >= m.layers()) return error("layer ", layer, " of ", m.layers(), ", which are numbered from 0");
    if (i > 0 && layer <= m.full_layers(i - 1))
      return error("must ascend, got ", layer, " after ", m.full_layers(i - 1));
  }
  return absl::OkStatus();
}

constexpr uint64_t kMaxHeadsWidth = 1 << 22;  // of all heads

absl::StatusOr<Llama> ResolveLlama(const Llama& model) {
  Llama m;
  if (model.has_size()) {
    const std::optional<Llama> size = NumbersOf(model.size());
    if (!size.has_value()) return absl::InvalidArgumentError("size: not a size of llama");
    m = *size;
    // A scaling of the job's own replaces the size's.
    if (model.has_rope_scaling()) m.clear_rope_scaling();
  }
  m.MergeFrom(model);
  // The limits are as GPT-2's.
  absl::Status numbers =
      CheckNumbers({{"layers", m.has_layers(), m.layers(), kMaxLlamaLayers},
                    {"heads", m.has_heads(), m.heads(), 65536},
                    {"key_value_heads", true, m.has_key_value_heads() ? m.key_value_heads() : 1, 65536},
                    {"width", m.has_width(), m.width(), 1u << 20},
                    {"head_width", true, m.has_head_width() ? m.head_width() : 2, 1u << 16},
                    {"inner", m.has_inner(), m.inner(), 1u << 22},
                    {"vocabulary", m.has_vocabulary(), m.vocabulary(), 1u << 24},
                    {"window", true, m.has_window() ? m.window() : 1, UINT32_MAX},
                    {"context", m.has_context(), m.context(), 1u << 20}},
                   "a size (tiny, 1b, 3b, 8b, 70b) or all of layers, heads, width, inner, vocabulary and context");
  if (!numbers.ok()) return numbers;
  if (!m.has_key_value_heads()) m.set_key_value_heads(m.heads());
  if (m.heads() % m.key_value_heads() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("key_value_heads: ", m.key_value_heads(), " does not divide heads ", m.heads()));
  }
  if (!m.has_head_width()) {
    if (m.width() % m.heads() != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("heads: ", m.heads(), " does not divide width ", m.width(), "; give head_width"));
    }
    m.set_head_width(m.width() / m.heads());
  }
  if (m.head_width() % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("head_width: must be even, got ", m.head_width()));
  }
  if (uint64_t{m.heads()} * m.head_width() > kMaxHeadsWidth) {
    return absl::InvalidArgumentError(absl::StrCat("head_width: of ", m.heads(), " heads, at most ",
                                                   kMaxHeadsWidth / m.heads(), ", got ", m.head_width()));
  }
  if (!m.has_rope_base()) m.set_rope_base(10'000);
  if (!(m.rope_base() > 1 && m.rope_base() <= 1e12)) {
    return absl::InvalidArgumentError(absl::StrCat("rope_base: must be greater than 1, got ", m.rope_base()));
  }
  if (!m.has_norm_epsilon()) m.set_norm_epsilon(1e-5);
  if (!(m.norm_epsilon() > 0 && m.norm_epsilon() <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("norm_epsilon: must be greater than 0, got ", m.norm_epsilon()));
  }
  if (m.qkv_bias() && m.qk_norm()) {
    return absl::InvalidArgumentError("qk_norm: no published model has it together with qkv_bias");
  }
  m.set_tied_head(m.tied_head());
  m.set_qkv_bias(m.qkv_bias());
  m.set_qk_norm(m.qk_norm());
  if (absl::Status s = CheckFullLayers(m); !s.ok()) return s;
  if (absl::Status s = ResolveScaling(m); !s.ok()) return s;
  return m;
}

// Keys of a query, its own included; 0: all up to its own, also where a window is as wide as the context.
uint32_t WindowOf(const Llama& m, uint32_t layer) {
  const bool full = std::find(m.full_layers().begin(), m.full_layers().end(), layer) != m.full_layers().end();
  return m.has_window() && m.window() < m.context() && !full ? m.window() : 0;
}

// Whether each share computes all keys and values, because there are more shares than these have heads. Then all heads
// of a share see the same ones.
bool MirrorsKeys(const Llama& m, const TensorShare& share) { return m.key_value_heads() < share.ranks; }

// Adds the collectives of a share's block, and the bytes of its passes: as without shares, but for what stands there.
void AddShare(const Llama& m, const TensorShare& share, Unit& unit) {
  const uint64_t c = m.width(), t = m.context() / share.context_ranks, own = c * t / share.ranks;
  const bool mirrors = MirrorsKeys(m, share);
  // The norms' where each share has a part of the rows, and those of heads where it has a part of these.
  AddBlockExchange(unit, t, c,
                   (share.sequence_parallel ? 2 * c : 0) + (m.qk_norm() ? (mirrors ? 1 : 2) * m.head_width() : 0),
                   share);
  TensorExchange::Pass& backward = *unit.mutable_tensor_exchange()->mutable_backward();
  if (mirrors) {
    const uint64_t keys = 2 * uint64_t{m.key_value_heads()} * m.head_width();
    backward.set_collectives(backward.collectives() + 1);
    backward.set_summed_bytes(backward.summed_bytes() + 4 * t * keys);
  }
  // Of all rows: what the second norm gives, and with sequence_parallel also what the GEMM by rows gives. In backward
  // that becomes its own gradient; with sequence_parallel come that gradient's part, and the gradient of what the GEMM
  // by rows gave.
  if (share.sequence_parallel) unit.set_forward_bytes(4 * (2 * t * c + own));
  const uint64_t around = 4 * (share.sequence_parallel ? 2 * t * c + 2 * own : t * c);
  unit.set_backward_bytes(std::max(unit.backward_bytes(), around));
  unit.set_backward_piece_bytes(unit.backward_piece_bytes() - 4 * c);
}

struct BlockWidths {
  uint64_t q, kv, inner;  // of one rank
};

// As GPT-2's. Where heads mirror keys, the rank's queries see one head of them. On a GPU keys and values are repeated
// for the heads that share them. A window's gradients are those of one block of queries, and the sum of the others'.
void AddContext(const Llama& m, const BlockWidths& own, Device device, const TensorShare& share, Unit& unit) {
  const AttentionShape& attention = unit.attention();
  const uint64_t keys = uint64_t{attention.key_value_heads()} * attention.width();
  const auto stream = static_cast<int64_t>(m.width() / TokenParts(share)), q = static_cast<int64_t>(own.q),
             kv = static_cast<int64_t>(own.kv), inner = static_cast<int64_t>(own.inner);
  AttentionElements forward{.own = stream - (2 * stream + 2 * inner)},
      backward{.own = q + q + 2 * kv - (2 * inner + stream)};
  if (device == DEVICE_CUDA) {
    forward.own += q, backward.own += 3 * q;
    backward.whole += 2 * keys;
    if (keys < own.q) forward.whole += 2 * own.q, backward.whole += 4 * own.q;
    if (attention.window() > 0) backward.whole += 2 * own.q;
  }
  AddContextExchange(unit, m.context(), keys, forward, backward, share);
}

Unit MakeBlock(const Llama& m, uint32_t layer, Device device, const TensorShare& share) {
  const uint64_t c = m.width(), all = m.context(), t = all / share.context_ranks, inner = m.inner() / share.ranks,
                 parts = TokenParts(share);
  const bool mirrors = MirrorsKeys(m, share);
  const uint64_t heads = m.heads() / share.ranks,
                 kv_heads = mirrors ? m.key_value_heads() : m.key_value_heads() / share.ranks;
  const uint64_t q = heads * m.head_width(), kv = kv_heads * m.head_width();
  Unit unit;
  unit.set_name(absl::StrCat("layers.", layer));
  unit.set_kind("llama.block");
  unit.set_drops(true);
  unit.mutable_attention()->set_heads(static_cast<uint32_t>(heads));
  unit.mutable_attention()->set_key_value_heads(mirrors ? 1 : static_cast<uint32_t>(kv_heads));
  unit.mutable_attention()->set_width(m.head_width());
  const uint64_t window = WindowOf(m, layer);
  if (window > 0) unit.mutable_attention()->set_window(static_cast<uint32_t>(window));
  const std::string at = absl::StrCat("model.layers.", layer, "."), attention = at + "self_attn.";
  // `axis`: by outputs or by inputs; none: all of it.
  const auto linear = [&](const std::string& name, uint64_t out, uint64_t in, std::optional<uint32_t> axis) {
    Tensor& weight = AddTensor(unit, name, {out, in}, Initialisation::NORMAL, kStandardDeviation);
    weight.set_linear(LINEAR_LAYOUT_OUT_IN);
    if (axis.has_value()) Cut(weight, {out, in}, *axis, share);
  };
  const auto bias = [&](const std::string& name, uint64_t out, bool cut) {
    Tensor& tensor = AddTensor(unit, name, {out}, Initialisation::ZEROS);
    if (cut) Cut(tensor, {out}, 0, share);
  };
  const uint64_t all_q = uint64_t{m.heads()} * m.head_width(), all_kv = uint64_t{m.key_value_heads()} * m.head_width();
  const std::optional<uint32_t> kv_axis = mirrors ? std::nullopt : std::optional<uint32_t>(0);
  AddTensor(unit, at + "input_layernorm.weight", {c}, Initialisation::ONES);
  linear(attention + "q_proj.weight", all_q, c, 0);
  linear(attention + "k_proj.weight", all_kv, c, kv_axis);
  linear(attention + "v_proj.weight", all_kv, c, kv_axis);
  if (m.qkv_bias()) {
    bias(attention + "q_proj.bias", all_q, true);
    bias(attention + "k_proj.bias", all_kv, !mirrors);
    bias(attention + "v_proj.bias", all_kv, !mirrors);
  }
  if (m.qk_norm()) {
    AddTensor(unit, attention + "q_norm.weight", {m.head_width()}, Initialisation::ONES);
    AddTensor(unit, attention + "k_norm.weight", {m.head_width()}, Initialisation::ONES);
  }
  linear(attention + "o_proj.weight", c, all_q, 1);
  AddTensor(unit, at + "post_attention_layernorm.weight", {c}, Initialisation::ONES);
  linear(at + "mlp.gate_proj.weight", m.inner(), c, 0);
  linear(at + "mlp.up_proj.weight", m.inner(), c, 0);
  linear(at + "mlp.down_proj.weight", c, m.inner(), 1);
  // The projections' weights per token, and attention's two GEMMs over the causal half, or that of a window's columns.
  const uint64_t seen = window > 0 ? window : all;
  unit.set_forward_flops(2.0 * t * (c * (q + 2 * kv) + q * c + 3 * c * inner) +
                         2.0 * 2 * q * (1.0 * seen * all - 1.0 * seen * seen / 2) / share.context_ranks);
  // Input, q k v (after their positions; with norms also before), attention's output, the sum after it, gate and up;
  // then each norm's statistic, and the softmax's log-sums.
  const uint64_t normed = m.qk_norm() ? q + kv : 0, statistics = m.qk_norm() ? heads + kv_heads : 0;
  unit.set_saved_bytes(4 * t * (q + 2 * kv + normed + q + 2 * inner + statistics + heads) +
                       4 * t * (2 * c + 2) / parts);
  unit.set_piece_rows(HiddenPieceRows(inner, device, share));
  // As GPT-2's, also of a share: the inputs of the GEMMs and the gradients of their outputs, and the gradients of the
  // norms.
  unit.set_deferred_bytes(4 * t * (4 * c + 3 * inner + 2 * q + 2 * kv) + 4 * 2 * (c + m.head_width()));
  unit.set_weight_gradient_flops(2.0 * t * (c * (q + 2 * kv) + q * c + 3 * c * inner));
  unit.set_forward_bytes(4 * t * c);                     // the second norm
  unit.set_forward_piece_bytes(4 * inner);               // gate times up
  unit.set_backward_piece_bytes(4 * 2 * inner + 4 * c);  // that, its gradient, the norm or its gradient
  if (device == DEVICE_CUDA) {
    // Attention's backward: the gradients of its output and of q k v, the latter once more before they are joined; less
    // gate and up and the sum after attention, which are gone by then. The sums of the norms' and the biases'
    // gradients.
    uint64_t around = q + 2 * (q + 2 * kv);
    // A window goes by blocks of queries, whose results are joined, under one mask of all layers, and to keys and
    // values that are repeated for the heads that share them (worker/units/operator_attention.h). Their gradients are
    // summed over the blocks.
    if (window > 0) {
      const WindowBlocks blocks = BlocksOfWindow(all, window);
      unit.set_backward_constant_bytes(4 * blocks.queries * (blocks.before + blocks.queries));
      if (share.context_ranks == 1) {
        unit.set_saved_bytes(unit.saved_bytes() + 4 * t * (q + (kv < q ? 2 * q : 0)));
        around += 4 * q;
      }
    } else if (share.context_ranks > 1) {
      unit.set_backward_constant_bytes(RunMaskBytes(all, share));
    }
    const uint64_t gone = 2 * inner + c / parts;
    unit.set_backward_bytes(4 * t * (around > gone ? around - gone : 0) + 4 * t * (q + 2 * kv) / kGpuTileRows);
    unit.set_backward_piece_bytes(unit.backward_piece_bytes() + 4 * c / kGpuTileRows);
  }
  AddHiddenStates(unit, t, c, share);
  if (!share.whole()) AddShare(m, share, unit);
  AddContext(m, {.q = q, .kv = kv, .inner = inner}, device, share, unit);
  return unit;
}

Inventory MakeLlama(const Llama& m, Device device, const TensorShare& share) {
  const uint64_t c = m.width(), v = m.vocabulary();
  Inventory inventory;
  SetLanguageTask(inventory, v, m.context() / share.context_ranks);

  Unit& embedding = AddTokenEmbedding(inventory, "llama.embedding", c, /*positions=*/false, share);
  Cut(AddTensor(embedding, "model.embed_tokens.weight", {v, c}, Initialisation::NORMAL, kStandardDeviation), {v, c}, 0,
      share);
  for (uint32_t layer = 0; layer < m.layers(); ++layer) *inventory.add_units() = MakeBlock(m, layer, device, share);
  Unit& head = AddLanguageHead(inventory, "llama.head", c, /*norm=*/c, device, share);
  AddTensor(head, "model.norm.weight", {c}, Initialisation::ONES);
  if (m.tied_head()) {
    Borrow& borrow = *head.add_borrows();
    borrow.set_unit("embedding");
    borrow.set_tensor("model.embed_tokens.weight");
  } else {
    Cut(AddTensor(head, "lm_head.weight", {v, c}, Initialisation::NORMAL, kStandardDeviation), {v, c}, 0, share);
  }
  return inventory;
}

class LlamaModels final : public ModelFamily {
 public:
  std::string name() const override { return "llama"; }

  absl::StatusOr<Model> Resolve(const Model& model) const override {
    absl::StatusOr<Llama> llama = ResolveLlama(model.llama());
    if (!llama.ok()) return llama.status();
    Model resolved = model;
    *resolved.mutable_llama() = *std::move(llama);
    return resolved;
  }
  Inventory MakeInventory(const Model& resolved, Device device, const TensorShare& share) const override {
    return MakeLlama(resolved.llama(), device, share);
  }
  absl::Status CheckTensorRanks(const Model& resolved, const TensorShare& share) const override {
    const Llama& m = resolved.llama();
    if (absl::Status s = CheckMultiple("heads", m.heads(), share); !s.ok()) return s;
    if (MirrorsKeys(m, share) && share.ranks % m.key_value_heads() != 0) {
      return absl::InvalidArgumentError(absl::StrCat("key_value_heads: ", m.key_value_heads(), " do not divide ",
                                                     share.ranks, " and are not a multiple of it"));
    }
    if (!MirrorsKeys(m, share)) {
      if (absl::Status s = CheckMultiple("key_value_heads", m.key_value_heads(), share); !s.ok()) return s;
    }
    if (absl::Status s = CheckMultiple("inner", m.inner(), share); !s.ok()) return s;
    return CheckLanguageShare(m.vocabulary(), m.context(), share);
  }
  absl::Status CheckContextRanks(const Model& resolved, const TensorShare& share) const override {
    return CheckLanguageContext(resolved.llama().context(), share);
  }
  std::string Describe(const Model& model) const override {
    const Llama& m = model.llama();
    if (!m.has_size()) return absl::StrCat("llama ", m.layers(), "x", m.width());
    return absl::StrCat("llama ", absl::AsciiStrToLower(absl::StripPrefix(LlamaSize_Name(m.size()), "LLAMA_SIZE_")));
  }

  bool Reads(const nlohmann::json& config) const override { return IsLlamaConfig(config); }
  absl::StatusOr<Model> FromConfig(const nlohmann::json& config) const override {
    absl::StatusOr<Llama> llama = LlamaOfConfig(config);
    if (!llama.ok()) return llama.status();
    Model model;
    *model.mutable_llama() = *std::move(llama);
    return model;
  }
  nlohmann::ordered_json ToConfig(const Model& resolved) const override { return ConfigOfLlama(resolved.llama()); }
  std::string ConfigKey(absl::string_view field) const override { return LlamaConfigKey(field); }
  std::string StoredName(absl::string_view tensor) const override { return std::string(tensor); }
  std::string TensorName(const Model& resolved, absl::string_view stored) const override {
    const bool repeats = resolved.llama().tied_head() && stored == "lm_head.weight";
    const bool derived = absl::EndsWith(stored, ".rotary_emb.inv_freq");  // older versions saved it
    return repeats || derived ? "" : std::string(stored);
  }
};

}  // namespace

const ModelFamily& LlamaFamily() {
  static const auto& family = *new LlamaModels;
  return family;
}

}  // namespace muster::models
