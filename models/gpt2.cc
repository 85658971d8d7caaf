#include "models/gpt2.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace muster::models {
namespace {

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

constexpr double kStandardDeviation = 0.02;

// Rows of one piece. On a CPU, for the hidden layer: enough rows for an efficient GEMM, few enough for the cache. For
// the logits a few more, because each piece reads and writes the embedding's gradient. On a GPU pieces are not for a
// cache: they are as large as GEMMs gain from, and small beside what is kept.
constexpr uint64_t kHiddenPieceBytes = 2 << 20, kLogitsPieceBytes = 64 << 20;
constexpr uint64_t kGpuHiddenRows = 8192, kGpuLogitsPieceBytes = 1 << 30;
// On a GPU a sum over rows first sums each tile of so many rows, in fp32 (worker/units/cuda/row_programs.h).
constexpr uint64_t kGpuTileRows = 32;

void AddTensor(Unit& unit, const std::string& name, const std::vector<uint64_t>& shape, Initialisation::Kind kind,
               double standard_deviation = 0) {
  Tensor& tensor = *unit.add_tensors();
  tensor.set_name(name);
  for (const uint64_t n : shape) tensor.add_shape(n);
  tensor.mutable_init()->set_kind(kind);
  tensor.mutable_init()->set_standard_deviation(standard_deviation);
  tensor.set_decay(shape.size() >= 2);
}

void AddNorm(Unit& unit, const std::string& name, uint64_t width) {
  AddTensor(unit, name + ".weight", {width}, Initialisation::ONES);
  AddTensor(unit, name + ".bias", {width}, Initialisation::ZEROS);
}

void AddLinear(Unit& unit, const std::string& name, uint64_t in, uint64_t out, double standard_deviation) {
  AddTensor(unit, name + ".weight", {in, out}, Initialisation::NORMAL, standard_deviation);
  AddTensor(unit, name + ".bias", {out}, Initialisation::ZEROS);
}

Unit MakeBlock(const Gpt2& m, uint32_t layer, Device device) {
  const uint64_t c = m.width(), t = m.context();
  // Residual projections are scaled by 1/sqrt(residual layers), two a block (section 2.3).
  const double residual = kStandardDeviation / std::sqrt(2.0 * m.layers());
  Unit unit;
  unit.set_name(absl::StrCat("h.", layer));
  unit.set_kind(UNIT_KIND_GPT2_BLOCK);
  unit.set_heads(m.heads());
  const std::string at = unit.name() + ".";
  AddNorm(unit, at + "ln_1", c);
  AddLinear(unit, at + "attn.c_attn", c, 3 * c, kStandardDeviation);
  AddLinear(unit, at + "attn.c_proj", c, c, residual);
  AddNorm(unit, at + "ln_2", c);
  AddLinear(unit, at + "mlp.c_fc", c, 4 * c, kStandardDeviation);
  AddLinear(unit, at + "mlp.c_proj", 4 * c, c, residual);
  // 12 c^2 weights per token, and attention's two GEMMs over the causal half.
  unit.set_forward_flops(2.0 * t * 12 * c * c + 2.0 * 2 * c * t * t / 2);
  // Input, q k v, attention's output, the sum after it, the hidden layer before GELU; then each norm's mean and
  // deviation, and the softmax's log-sums. The reference by autograd keeps half as much again.
  unit.set_saved_bytes(4 * t * (c + 3 * c + c + c + 4 * c) + 4 * t * (4 + m.heads()));
  unit.set_forward_bytes(4 * t * c);                  // ln_2
  unit.set_forward_piece_bytes(16 * c);               // GELU
  unit.set_backward_piece_bytes(2 * 16 * c + 4 * c);  // GELU, the hidden layer's gradient, ln_2 or its gradient
  unit.set_output_bytes(4 * t * c);
  if (device == DEVICE_CUDA) {
    unit.set_piece_rows(kGpuHiddenRows);
    // Attention's backward: the gradients of its output and of q k v, the latter once more before they are joined, and
    // its sums; all less the hidden layer and the sum after attention, which are gone by then. The bias's sums.
    unit.set_backward_bytes(4 * t * (8 * c - 5 * c) + 4 * t * 3 * c / kGpuTileRows);
    unit.set_backward_piece_bytes(unit.backward_piece_bytes() + 4 * (4 + 2) * c / kGpuTileRows);
  } else {
    unit.set_piece_rows(std::max<uint64_t>(64, kHiddenPieceBytes / (16 * c)));
  }
  return unit;
}

}  // namespace

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
  struct Number {
    const char* name;
    bool given;
    uint32_t value;
    uint32_t max;
  };
  // Token ids are 32 bits wide; the limits keep sizes that no machine holds from overflowing sums.
  for (const Number& n :
       {Number{"layers", m.has_layers(), m.layers(), 4096}, Number{"heads", m.has_heads(), m.heads(), 65536},
        Number{"width", m.has_width(), m.width(), 1u << 20},
        Number{"vocabulary", m.has_vocabulary(), m.vocabulary(), 1u << 24},
        Number{"context", m.has_context(), m.context(), 1u << 20}}) {
    if (!n.given) {
      return absl::InvalidArgumentError(
          absl::StrCat(n.name,
                       ": missing; give a size (tiny, small, medium, large, xl) or all of layers, heads, width, "
                       "vocabulary and context"));
    }
    if (n.value == 0 || n.value > n.max) {
      return absl::InvalidArgumentError(absl::StrCat(n.name, ": must be 1 to ", n.max, ", got ", n.value));
    }
  }
  if (m.width() % m.heads() != 0) {
    return absl::InvalidArgumentError(absl::StrCat("heads: ", m.heads(), " does not divide width ", m.width()));
  }
  return m;
}

Inventory MakeGpt2(const Gpt2& m, Device device) {
  const uint64_t c = m.width(), t = m.context(), v = m.vocabulary();
  Inventory inventory;
  inventory.set_family("gpt2");
  inventory.set_vocabulary(v);
  inventory.set_context(t);
  inventory.set_device(device);

  Unit& embedding = *inventory.add_units();
  embedding.set_name("embedding");
  embedding.set_kind(UNIT_KIND_GPT2_EMBEDDING);
  AddTensor(embedding, "wte.weight", {v, c}, Initialisation::NORMAL, kStandardDeviation);
  AddTensor(embedding, "wpe.weight", {t, c}, Initialisation::NORMAL, kStandardDeviation / 2);  // OpenAI's 0.01
  embedding.set_forward_flops(1.0 * t * c);
  embedding.set_saved_bytes(8 * (t + 1));  // the token ids
  embedding.set_output_bytes(4 * t * c);
  embedding.set_backward_without_parameters(true);  // it adds the gradient's rows to those of the tokens

  for (uint32_t layer = 0; layer < m.layers(); ++layer) *inventory.add_units() = MakeBlock(m, layer, device);

  Unit& head = *inventory.add_units();
  head.set_name("head");
  head.set_kind(UNIT_KIND_GPT2_HEAD);
  AddNorm(head, "ln_f", c);
  Borrow& borrow = *head.add_borrows();
  borrow.set_unit("embedding");
  borrow.set_tensor("wte.weight");
  head.set_forward_flops(2.0 * t * c * v);
  head.set_saved_bytes(4 * t * c);  // the input
  const uint64_t logits = device == DEVICE_CUDA ? kGpuLogitsPieceBytes : kLogitsPieceBytes;
  head.set_piece_rows(std::max<uint64_t>(64, logits / (4 * v)));
  head.set_backward_bytes(4 * t * c);              // its gradient
  head.set_backward_piece_bytes(4 * (v + c + 2));  // logits, which become their own gradient, and around the norm
  return inventory;
}

}  // namespace muster::models
