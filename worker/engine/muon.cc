#include "worker/engine/muon.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "strategies/partition/flat.h"

namespace muster::engine {
namespace {

// torch.optim.Muon's defaults: the polynomial with the largest slope at zero, and what is added to a norm of zero.
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315, kEpsilon = 1e-7;

int64_t Padded(int64_t elements) { return static_cast<int64_t>(partition::Padded(static_cast<uint64_t>(elements))); }

class MuonOptimizer final : public FlatOptimizer {
 public:
  MuonOptimizer(const Optimizer& options, std::vector<Run> runs, const MakeZeros& zeros, const units::Gemms& gemms,
                bool by_programs)
      : options_(options.muon()),
        weight_decay_(options.weight_decay()),
        adamw_rate_(options_.adamw_lr() / options.lr()),
        gemms_(gemms) {
    std::vector<Run> others;
    int64_t momenta = 0, others_elements = 0;
    for (const Run& run : runs) (run.shape.empty() ? others_elements : momenta) += Padded(run.length);
    momenta_ = zeros(momenta);
    momenta = others_elements = 0;
    for (Run& run : runs) {
      if (run.shape.empty()) {
        others_.push_back({run.begin, others_elements, run.length});
        others.push_back(run);
        others.back().begin = others_elements;
        others_elements += Padded(run.length);
      } else {
        const int64_t rows = run.shape[0];
        const auto matrix = [rows](const at::Tensor& flat) { return flat.view({rows, flat.numel() / rows}); };
        matrices_.push_back({run.begin, run.decay ? weight_decay_ : 0, matrix(run.parameter), matrix(run.gradient),
                             matrix(momenta_.narrow(0, momenta, run.length)),
                             run.computed.defined() ? matrix(run.computed) : run.computed});
        momenta += Padded(run.length);
      }
    }
    Optimizer adamw;
    adamw.mutable_adamw()->set_beta1(options_.adamw_beta1());
    adamw.mutable_adamw()->set_beta2(options_.adamw_beta2());
    adamw.mutable_adamw()->set_eps(options_.adamw_eps());
    adamw.set_weight_decay(options_.adamw_weight_decay());
    adamw_ = MakeOptimizer(adamw, std::move(others), others_elements, zeros, gemms, by_programs);
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    for (const Matrix& m : matrices_) {
      if (factor != 1.0) m.gradient.mul_(factor);
      m.momentum.lerp_(m.gradient, 1 - options_.momentum());
      Orthogonalize(m);
      if (m.weight_decay != 0) m.parameter.mul_(1 - learning_rate * m.weight_decay);
      m.parameter.add_(m.gradient, -learning_rate * Adjustment(m));
      if (m.computed.defined()) m.computed.copy_(m.parameter);
    }
    adamw_->Step(step, learning_rate * adamw_rate_, factor);
  }

  // A skipped step moves the momentum by 0 towards a gradient of 0, multiplies parameters by 1 and adds 0.
  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    const at::Tensor skips = decision.skip.to(at::kBool), weight = UnlessSkipped(decision, 1 - options_.momentum(), 0),
                     rate = UnlessSkipped(decision, learning_rate, 0),
                     shrink = UnlessSkipped(decision, 1 - learning_rate * weight_decay_, 1);
    for (const Matrix& m : matrices_) {
      m.gradient.div_(decision.divisor).masked_fill_(skips, 0);
      m.momentum.lerp_(m.gradient, weight);
      Orthogonalize(m);
      if (m.weight_decay != 0) m.parameter.mul_(shrink);
      m.parameter.sub_(m.gradient.mul_(rate.mul(Adjustment(m))));
      if (m.computed.defined()) m.computed.copy_(m.parameter);
    }
    adamw_->StepUnless(decision, step, learning_rate * adamw_rate_);
  }

  std::vector<StatePart> State() override {
    std::vector<StatePart> parts;
    for (const Matrix& m : matrices_) {
      parts.push_back({"momentum_buffer", m.begin, m.momentum.numel(), m.momentum.view({-1})});
    }
    for (const StatePart& all : adamw_->State()) {
      for (const Other& other : others_) {
        parts.push_back({all.kind, other.begin, other.length, all.values.narrow(0, other.of_adamw, other.length)});
      }
    }
    return parts;
  }

 private:
  struct Matrix {
    int64_t begin;
    double weight_decay;
    at::Tensor parameter, gradient, momentum, computed;  // [rows, columns]; computed as in Run
  };
  struct Other {
    int64_t begin, of_adamw, length;  // index in all trained elements, and in AdamW's state
  };

  // The gradient becomes the update: a mixed sum of bf16 and fp32 would make a copy of it on a CPU.
  void Orthogonalize(const Matrix& m) const {
    if (options_.nesterov()) m.gradient.lerp_(m.momentum, options_.momentum());
    m.gradient.copy_(Orthogonalized(options_.nesterov() ? m.gradient : m.momentum, options_.ns_steps(), gemms_));
  }

  double Adjustment(const Matrix& m) const {
    const auto rows = static_cast<double>(m.parameter.size(0)), columns = static_cast<double>(m.parameter.size(1));
    if (options_.adjust_lr_fn() == ADJUST_LR_FN_MATCH_RMS_ADAMW) return 0.2 * std::sqrt(std::max(rows, columns));
    return std::sqrt(std::max(1.0, rows / columns));
  }

  const Muon options_;
  const double weight_decay_, adamw_rate_;
  const units::Gemms gemms_;
  at::Tensor momenta_;
  std::vector<Matrix> matrices_;
  std::vector<Other> others_;
  std::unique_ptr<FlatOptimizer> adamw_;
};

}  // namespace

at::Tensor Orthogonalized(const at::Tensor& matrix, uint32_t steps, const units::Gemms& gemms) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  x.div_(x.norm().clamp_min_(kEpsilon));  // so that the largest singular value is at most 1
  if (tall) x = x.t().contiguous();
  const int64_t least = x.size(0);
  at::Tensor next = at::empty_like(x);
  const at::Tensor gram = at::empty({least, least}, x.options()), polynomial = at::empty_like(gram);
  for (uint32_t i = 0; i < steps; ++i) {
    gemms.Compute(x, x.t(), gram);
    gemms.Combine(gram, kB, gram, gram, kC, polynomial);
    gemms.Combine(x, kA, polynomial, x, 1, next);
    std::swap(x, next);
  }
  return tall ? x.t() : x;
}

std::unique_ptr<FlatOptimizer> MakeMuon(const Optimizer& options, std::vector<Run> runs, const MakeZeros& zeros,
                                        const units::Gemms& gemms, bool by_programs) {
  return std::make_unique<MuonOptimizer>(options, std::move(runs), zeros, gemms, by_programs);
}

}  // namespace muster::engine
