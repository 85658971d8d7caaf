#include "worker/engine/adafactor.h"

#include <ATen/ops/full.h>

#include <algorithm>
#include <cmath>

#include "strategies/partition/flat.h"

namespace muster::engine {
namespace {

class AdafactorOptimizer final : public FlatOptimizer {
 public:
  AdafactorOptimizer(const Optimizer& options, const std::vector<Run>& runs, const MakeZeros& zeros)
      : options_(options.adafactor()), weight_decay_(options.weight_decay()) {
    for (const Run& run : runs) tensors_.push_back(Shaped(run));
    int64_t elements = 0;
    for (const Factored& t : tensors_) {
      for (const Kept& kept : t.state) elements += kept.Room();
    }
    state_ = zeros(elements);
    elements = 0;
    for (Factored& t : tensors_) {
      for (Kept& kept : t.state) {
        kept.values = state_.narrow(0, elements, kept.Elements()).view(kept.shape);
        elements += kept.Room();
      }
    }
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    const auto one = [&](double value) { return at::full({1}, value, state_.options()); };
    StepUnless({.divisor = one(1 / factor), .skip = one(0), .skipped = one(0)}, step, learning_rate);
  }

  // A skipped step moves the state by 0 towards a gradient of 0, multiplies parameters by 1 and adds 0.
  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    const at::Tensor skips = decision.skip.to(at::kBool);
    const at::Tensor updates = decision.skipped.to(at::kDouble).neg_().add_(static_cast<double>(step));
    const at::Tensor weight = updates.pow(options_.beta2_decay()).masked_fill_(skips, 0).to(at::kFloat);
    const at::Tensor relative = updates.rsqrt().clamp_max_(learning_rate).masked_fill_(skips, 0);
    const at::Tensor shrink = UnlessSkipped(decision, 1 - learning_rate * weight_decay_, 1);
    for (const Factored& t : tensors_) {
      const double root = std::sqrt(static_cast<double>(t.parameter.numel()));
      t.gradient.div_(decision.divisor).masked_fill_(skips, 0);
      const at::Tensor step_size =
          t.parameter.norm().to(at::kDouble).div_(root).clamp_min_(options_.eps2()).mul(relative);
      if (t.decay && weight_decay_ != 0) t.parameter.mul_(shrink);
      if (t.state.size() == 2) {
        ScaleMatrix(t, weight);
      } else {
        t.state[0].values.lerp_(t.gradient.square(), weight);
        t.gradient.mul_(RootOf(t.state[0].values.clone()));
      }
      const at::Tensor clip = t.gradient.norm().to(at::kDouble).div_(root * options_.d()).clamp_min_(1);
      t.parameter.sub_(t.gradient.mul_(step_size.div(clip).to(at::kFloat)));
    }
  }

  std::vector<StatePart> State() override {
    std::vector<StatePart> parts;
    for (const Factored& t : tensors_) {
      for (const Kept& kept : t.state) {
        StatePart& part =
            parts.emplace_back(StatePart{kept.kind, t.begin, t.parameter.numel(), kept.values.view({-1})});
        part.shape.assign(kept.shape.begin(), kept.shape.end());
      }
    }
    return parts;
  }

 private:
  struct Kept {
    const char* kind;  // as torch.optim.Adafactor's state
    std::vector<int64_t> shape;
    at::Tensor values = {};

    int64_t Elements() const {
      int64_t n = 1;
      for (const int64_t d : shape) n *= d;
      return n;
    }
    int64_t Room() const { return static_cast<int64_t>(partition::Padded(static_cast<uint64_t>(Elements()))); }
  };
  struct Factored {
    int64_t begin;
    bool decay;
    at::Tensor parameter, gradient;  // [matrices, rows, columns], or a vector
    std::vector<Kept> state;         // a row and a column, or all elements
  };

  static Factored Shaped(const Run& run) {
    const size_t dimensions = run.shape.size();
    if (dimensions < 2) return {run.begin, run.decay, run.parameter, run.gradient, {{"variance", run.shape}}};
    std::vector<int64_t> rows = run.shape, columns = run.shape;
    rows[dimensions - 1] = columns[dimensions - 2] = 1;
    const std::vector<int64_t> matrices = {-1, run.shape[dimensions - 2], run.shape[dimensions - 1]};
    return {run.begin,
            run.decay,
            run.parameter.view(matrices),
            run.gradient.view(matrices),
            {{"row_var", rows}, {"col_var", columns}}};
  }

  // 1 / sqrt(variance), in place.
  at::Tensor RootOf(const at::Tensor& variance) const {
    return variance.clamp_min_(options_.eps1() * options_.eps1()).rsqrt_();
  }

  // Divides the gradient by the root of the second moments, in blocks, because those of all elements take as much
  // memory as it.
  void ScaleMatrix(const Factored& t, const at::Tensor& weight) const {
    const at::Tensor& g = t.gradient;
    const int64_t matrices = g.size(0), rows = g.size(1), columns = g.size(2);
    const at::Tensor row = t.state[0].values.view({matrices, rows, 1}),
                     column = t.state[1].values.view({matrices, 1, columns});
    row.lerp_(g.norm(2, {2}, /*keepdim=*/true).square_().div_(static_cast<double>(columns)), weight);
    column.lerp_(g.norm(2, {1}, /*keepdim=*/true).square_().div_(static_cast<double>(rows)), weight);
    const at::Tensor mean = row.mean({1}, /*keepdim=*/true).clamp_min_(options_.eps1());
    const int64_t most = g.is_cuda() ? int64_t{1} << 22 : int64_t{1} << 14;
    const int64_t some = std::clamp<int64_t>(most / (rows * columns), 1, matrices),
                  height = std::clamp<int64_t>(most / columns, 1, rows);
    for (int64_t m = 0; m < matrices; m += some) {
      const int64_t count = std::min(some, matrices - m);
      for (int64_t r = 0; r < rows; r += height) {
        const auto block = [&](const at::Tensor& of) {
          return of.narrow(0, m, count).narrow(1, r, std::min(height, rows - r));
        };
        const at::Tensor variance = block(row).mul(column.narrow(0, m, count)).div_(mean.narrow(0, m, count));
        block(g).mul_(RootOf(variance));
      }
    }
  }

  const Adafactor options_;
  const double weight_decay_;
  std::vector<Factored> tensors_;
  at::Tensor state_;
};

}  // namespace

std::unique_ptr<FlatOptimizer> MakeAdafactor(const Optimizer& options, const std::vector<Run>& runs,
                                             const MakeZeros& zeros) {
  return std::make_unique<AdafactorOptimizer>(options, runs, zeros);
}

}  // namespace muster::engine
