#include "worker/units/llama/llama.h"

#include <ATen/ops/empty.h>

#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/mutex.h"
#include "models/llama/llama.h"
#include "worker/units/language.h"

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
  return {cosine.to(options), sine.to(options)};
}

class RopeTables {
 public:
  std::shared_ptr<const RopeTable> Get(const Llama& model, const at::TensorOptions& options) {
    const std::string key = absl::StrCat(model.context(), " ", model.head_width(), " ", model.rope_base(), " ",
                                         model.rope_scaling().SerializeAsString(), " ", options.device().str(), " ",
                                         static_cast<int>(c10::typeMetaToScalarType(options.dtype())));
    const MutexLock lock(mutex_);
    std::shared_ptr<const RopeTable> table = tables_[key].lock();
    if (table == nullptr) tables_[key] = table = std::make_shared<const RopeTable>(ComputeRope(model, options));
    return table;
  }

 private:
  Mutex mutex_;
  std::map<std::string, std::weak_ptr<const RopeTable>> tables_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::shared_ptr<const RopeTable> MakeRopeTable(const Llama& model, const at::TensorOptions& options) {
  static auto& tables = *new RopeTables;
  return tables.Get(model, options);
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

absl::StatusOr<std::unique_ptr<UnitModule>> MakeLlamaUnit(const Model& model, const Unit& unit,
                                                          std::vector<Parameter> parameters,
                                                          const UnitOptions& options) {
  std::vector<Parameter>& p = parameters;
  if (unit.kind() == "llama.embedding") return MakeTokenEmbedding(p[0]);
  if (unit.kind() == "llama.head") {
    return MakeLanguageHead({.weight = p[0], .bias = {}, .epsilon = model.llama().norm_epsilon()}, p[1],
                            unit.piece_rows(), options);
  }
  if (unit.kind() != "llama.block") return absl::UnimplementedError(absl::StrCat("llama has no unit ", unit.kind()));
  // The programs of GPUs do not have its row operations.
  const bool fused = !options.portable && p[0].value.is_cpu() && options.rows == RowCode::kVector;
  if (!fused) return MakePortableLlamaBlock(model.llama(), std::move(p), options);
  return MakeLlamaBlock(model.llama(), std::move(p), unit.piece_rows(), options);
}

}  // namespace muster::units
