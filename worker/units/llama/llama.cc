#include "worker/units/llama/llama.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "models/llama/llama.h"
#include "worker/units/language.h"
#include "worker/units/shared.h"

namespace muster::units {
namespace {

RopeTable ComputeRope(const Llama& model, const at::TensorOptions& options) {
  const std::vector<double> frequencies = models::RopeFrequencies(model);
  const double amplitude = models::RopeAmplitude(model);
  const auto pairs = static_cast<int64_t>(frequencies.size());
  const at::Tensor cosine = at::empty({model.context(), pairs}, at::kDouble), sine = at::empty_like(cosine);
  double *c = cosine.mutable_data_ptr<double>(), *s = sine.mutable_data_ptr<double>();
  for (uint32_t position = 0; position < model.context(); ++position) {
    for (const double frequency : frequencies) {
      *c++ = amplitude * std::cos(position * frequency);
      *s++ = amplitude * std::sin(position * frequency);
    }
  }
  return {cosine.to(options), sine.to(options), at::stack({sine.neg(), sine}, 1).to(options)};
}

}  // namespace

std::shared_ptr<const RopeTable> MakeRopeTable(const Llama& model, const at::TensorOptions& options) {
  static auto& tables = *new Shared<RopeTable>;
  const std::string key = absl::StrCat(model.context(), " ", model.head_width(), " ", model.rope_base(), " ",
                                       model.rope_scaling().SerializeAsString(), " ", options.device().str(), " ",
                                       static_cast<int>(c10::typeMetaToScalarType(options.dtype())));
  return tables.Get(key, [&] { return ComputeRope(model, options); });
}

LlamaParameters ParametersOf(const Llama& model) {
  LlamaParameters p;
  int next = 0;
  p.input_norm = next++;
  p.q = next++, p.k = next++, p.v = next++;
  if (model.qkv_bias()) p.q_bias = next++, p.k_bias = next++, p.v_bias = next++;
  if (model.qk_norm()) p.q_norm = next++, p.k_norm = next++;
  p.out = next++;
  p.inner_norm = next++;
  p.gate = next++, p.up = next++, p.down = next++;
  return p;
}

absl::StatusOr<std::unique_ptr<UnitModule>> MakeLlamaUnit(const Inventory& inventory, const Unit& unit,
                                                          std::vector<Parameter> parameters,
                                                          const UnitOptions& options) {
  std::vector<Parameter>& p = parameters;
  const Model& model = inventory.model();
  const LanguageShare share = LanguageShareOf(inventory);
  if (unit.kind() == "llama.embedding") return MakeTokenEmbedding(p[0], {}, share, options);
  if (unit.kind() == "llama.head") {
    return MakeLanguageHead({.weight = p[0], .bias = {}, .epsilon = model.llama().norm_epsilon()}, p[1],
                            unit.piece_rows(), share, options);
  }
  if (unit.kind() != "llama.block") return absl::UnimplementedError(absl::StrCat("llama has no unit ", unit.kind()));
  if (options.portable) return MakePortableLlamaBlock(model.llama(), unit, std::move(p), options);
  return MakeLlamaBlock(model.llama(), unit, std::move(p), share, options);
}

}  // namespace muster::units
