#include <algorithm>
#include <cmath>
#include <numbers>

#include "models/llama/llama.h"

namespace muster::models {
namespace {

// The part of a frequency that is kept, 0 to 1; the rest of it is divided by the factor.
double Llama3Kept(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency, turns = scaling.original_context() / wavelength;
  const double low = scaling.low_frequency_factor(), high = scaling.high_frequency_factor();
  if (turns <= low) return 0;
  if (turns >= high) return 1;
  return (turns - low) / (high - low);
}

// The pair, as a real number, that makes `turns` turns within the original context.
double PairOf(double turns, const Llama& model) {
  const double context = model.rope_scaling().original_context();
  return model.head_width() * std::log(context / (turns * 2 * std::numbers::pi)) / (2 * std::log(model.rope_base()));
}

double YarnKept(double pair, const Llama& model) {
  const double first = std::max(std::floor(PairOf(model.rope_scaling().beta_fast(), model)), 0.0);
  double last = std::min(std::ceil(PairOf(model.rope_scaling().beta_slow(), model)), model.head_width() - 1.0);
  if (last == first) last += 0.001;  // as `transformers`
  return 1 - std::clamp((pair - first) / (last - first), 0.0, 1.0);
}

// NTK-aware scaling for the length of a job's sequences: a larger base, which stretches low frequencies most. As
// `transformers` for sequences of that length: up to the original context nothing changes.
double DynamicBase(const Llama& model) {
  const RopeScaling& scaling = model.rope_scaling();
  const double length = std::max(model.context(), scaling.original_context()), d = model.head_width();
  const double stretch = scaling.factor() * length / scaling.original_context() - (scaling.factor() - 1);
  return model.rope_base() * std::pow(stretch, d / (d - 2));
}

// What a pair's frequency is divided by. As `transformers` for sequences of the job's context.
double LongropeDivisor(const Llama& model, uint32_t pair) {
  const RopeScaling& scaling = model.rope_scaling();
  const bool beyond = model.context() > scaling.original_context();
  return (beyond ? scaling.long_factors() : scaling.short_factors())[static_cast<int>(pair)];
}

// Of linear, llama3 and yarn: the part of a pair's frequency that stays as it is.
double Kept(double frequency, double pair, const Llama& model) {
  switch (model.rope_scaling().kind()) {
    case ROPE_SCALING_KIND_LINEAR:
      return 0;
    case ROPE_SCALING_KIND_LLAMA3:
      return Llama3Kept(frequency, model.rope_scaling());
    case ROPE_SCALING_KIND_YARN:
      return YarnKept(pair, model);
    default:
      return 1;
  }
}

}  // namespace

std::vector<double> RopeFrequencies(const Llama& model) {
  std::vector<double> frequencies;
  const RopeScalingKind kind = model.rope_scaling().kind();
  const double base = kind == ROPE_SCALING_KIND_DYNAMIC ? DynamicBase(model) : model.rope_base();
  for (uint32_t pair = 0; pair < model.head_width() / 2; ++pair) {
    const double plain = std::pow(base, -2.0 * pair / model.head_width());
    if (kind == ROPE_SCALING_KIND_LONGROPE) {
      frequencies.push_back(plain / LongropeDivisor(model, pair));
      continue;
    }
    const double kept = Kept(plain, pair, model);
    frequencies.push_back(kept == 1 ? plain : plain * (kept + (1 - kept) / model.rope_scaling().factor()));
  }
  return frequencies;
}

double RopeAmplitude(const Llama& model) {
  return model.rope_scaling().has_attention_factor() ? model.rope_scaling().attention_factor() : 1;
}

}  // namespace muster::models
