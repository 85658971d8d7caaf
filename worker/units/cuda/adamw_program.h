// AdamW's update (adamw.h), by the rules of program.h.
#pragma once

#include "worker/units/cuda/program.h"

namespace muster::units::programs {

// Runs of one launch: what fits into a kernel's 4 KiB of arguments.
inline constexpr int kAdamWRuns = 64;
inline constexpr int64_t kAdamWElements = 8192;  // of one block
constexpr int64_t AdamWBlocks(int64_t elements) { return (elements + kAdamWElements - 1) / kAdamWElements; }

template <typename N>
struct AdamWRun {
  float* parameter;
  const float* gradient;
  float *exp_avg, *exp_avg_sq;
  N* computed;  // the copy that is computed with; null: there is none
  int64_t elements;
  int32_t end;  // block after its last one
  float weight_decay;
};

template <typename N>
struct AdamWStep {
  using Number = float;
  static constexpr const char* kName = "muster::AdamWStep";
  static constexpr int kThreads = kWideThreads;
  AdamWRun<N> runs[kAdamWRuns];
  int count;
  double learning_rate, beta1, beta2;
  float epsilon;
  double step;  // from 1, with those that were skipped
  // What the device decides, as engine/update_decision.h; or all null, and `factor` multiplies gradients.
  const float *divisor, *skip, *skipped;
  float factor;
  const double* now;  // the step and the learning rate, in place of those above; or null

  struct Numbers {
    float rate, root;
  };

  Grid grid() const { return {count == 0 ? 0 : runs[count - 1].end, 1}; }
  template <typename Block>
  MUSTER_PROGRAM void operator()(const Block& block, Place at) const {
    if (skip != nullptr && *skip != 0) return;
    int r = 0;
    for (int end = count - 1; r < end;) {
      const int middle = (r + end) / 2;
      if (at.x < runs[middle].end) {
        end = middle;
      } else {
        r = middle + 1;
      }
    }
    const AdamWRun<N>& run = runs[r];
    const int64_t begin = (at.x - (r == 0 ? 0 : runs[r - 1].end)) * kAdamWElements;
    const int64_t left = run.elements - begin;
    const int n = static_cast<int>(left < kAdamWElements ? left : kAdamWElements);
    const double rate = now == nullptr ? learning_rate : now[1];
    // Powers in double are slow on many GPUs, so one thread of a block computes them.
    const Sums<float, 2> corrected = SumOf<float, 2>(block, 1, [&](int, float* sums) {
      const double all = now == nullptr ? step : now[0];
      const double t = skipped == nullptr ? all : all - static_cast<double>(*skipped);
      sums[0] = static_cast<float>(rate / (1 - std::pow(beta1, t)));
      sums[1] = static_cast<float>(std::sqrt(1 - std::pow(beta2, t)));
    });
    const float divided_by = divisor == nullptr ? 1 : *divisor;
    const float weight1 = static_cast<float>(1 - beta1), weight2 = static_cast<float>(1 - beta2);
    const float decay = static_cast<float>(rate * run.weight_decay);
    // Averages as interpolations, whose weights then have all their digits: 1 - beta, rounded, not 1 - rounded beta.
    const auto update = [&](float given, float& p, float& m, float& v) {
      const float g = given * factor / divided_by;
      m += weight1 * (g - m);
      v += weight2 * (g * g - v);
      p -= decay * p;
      p -= corrected.at[0] * m / (std::sqrt(v) / corrected.at[1] + epsilon);
    };
    float* const p = run.parameter + begin;
    const float* const g = run.gradient + begin;
    float *const m = run.exp_avg + begin, *const v = run.exp_avg_sq + begin;
    N* const c = run.computed == nullptr ? nullptr : run.computed + begin;
    const auto body = [&](auto count, int i) {
      constexpr int kCount = decltype(count)::value;
      auto ps = Load<kCount>(p + i), ms = Load<kCount>(m + i), vs = Load<kCount>(v + i);
      const auto gs = Load<kCount>(g + i);
      for (int k = 0; k < kCount; ++k) update(gs.at[k], ps.at[k], ms.at[k], vs.at[k]);
      Store(ps, p + i);
      Store(ms, m + i);
      Store(vs, v + i);
      if (c == nullptr) return;
      Pack<N, kCount> cs;
      for (int k = 0; k < kCount; ++k) Put(ps.at[k], cs.at[k]);
      Store(cs, c + i);
    };
    EachPack(block, n, body, p, g, m, v, c);
  }
};
static_assert(sizeof(AdamWStep<float>) <= 4096 && sizeof(AdamWStep<Bf16>) <= 4096);

}  // namespace muster::units::programs
