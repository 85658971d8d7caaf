#include "worker/engine/optimizer.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>

#include "worker/engine/adafactor.h"
#include "worker/engine/muon.h"
#include "worker/engine/narrow_weights.h"
#include "worker/units/adamw.h"

namespace muster::engine {
namespace {

// Selects the runs with, or without, weight decay.
std::vector<Run> Select(const std::vector<Run>& runs, bool decay) {
  std::vector<Run> selected;
  for (const Run& run : runs) {
    if (run.decay == decay) selected.push_back(run);
  }
  return selected;
}

std::vector<at::Tensor> Parameters(const std::vector<Run>& runs) {
  std::vector<at::Tensor> views;
  for (const Run& run : runs) views.push_back(run.parameter);
  return views;
}
std::vector<at::Tensor> Gradients(const std::vector<Run>& runs) {
  std::vector<at::Tensor> views;
  for (const Run& run : runs) views.push_back(run.gradient);
  return views;
}
std::vector<at::Tensor> StateOf(const at::Tensor& state, const std::vector<Run>& runs) {
  std::vector<at::Tensor> views;
  for (const Run& run : runs) views.push_back(state.narrow(0, run.begin, run.length));
  return views;
}

// In fp32, as LibTorch's fused operators read it.
at::Tensor RateOf(const UpdateDecision& decision) { return decision.now.select(0, 1).to(at::kFloat); }

StatePart OfAll(const char* kind, const at::Tensor& values) { return {kind, 0, values.numel(), values}; }

class AdamWOptimizer final : public FlatOptimizer {
 public:
  AdamWOptimizer(const Optimizer& options, const std::vector<Run>& runs, int64_t elements, const MakeZeros& zeros)
      : beta1_(options.adamw().beta1()),
        beta2_(options.adamw().beta2()),
        eps_(options.adamw().eps()),
        exp_avg_(zeros(elements)),
        exp_avg_sq_(zeros(elements)),
        step_(at::full({}, 0.0f, exp_avg_.options())) {
    for (const bool decay : {true, false}) {
      const std::vector<Run> selected = Select(runs, decay);
      if (selected.empty()) continue;
      groups_.push_back({decay ? options.weight_decay() : 0.0, Parameters(selected), Gradients(selected),
                         StateOf(exp_avg_, selected), StateOf(exp_avg_sq_, selected),
                         std::vector<at::Tensor>(selected.size(), step_)});
    }
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    std::optional<at::Tensor> scale;
    if (factor != 1.0) scale = at::full({1}, 1.0 / factor, step_.options());  // gradients are divided by it
    step_.fill_(static_cast<double>(step));
    Update(learning_rate, scale, {});
  }

  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    if (decision.now.defined()) {
      step_.copy_(decision.now.select(0, 0)).sub_(decision.skipped.select(0, 0));
      return Update(RateOf(decision), decision.divisor, decision.skip);
    }
    step_.fill_(static_cast<double>(step)).sub_(decision.skipped.select(0, 0));
    Update(learning_rate, decision.divisor, decision.skip);
  }

  std::vector<StatePart> State() override { return {OfAll("exp_avg", exp_avg_), OfAll("exp_avg_sq", exp_avg_sq_)}; }

 private:
  struct Group {
    double weight_decay;
    std::vector<at::Tensor> parameters, gradients, exp_avg, exp_avg_sq, steps;
  };

  template <typename Rate>
  void Update(const Rate& learning_rate, const std::optional<at::Tensor>& scale,
              const std::optional<at::Tensor>& skip) {
    for (Group& g : groups_) {
      at::_fused_adamw_(g.parameters, g.gradients, g.exp_avg, g.exp_avg_sq, /*max_exp_avg_sqs=*/{}, g.steps,
                        learning_rate, beta1_, beta2_, g.weight_decay, eps_, /*amsgrad=*/false, /*maximize=*/false,
                        scale, skip);
    }
  }

  double beta1_, beta2_, eps_;
  at::Tensor exp_avg_, exp_avg_sq_, step_;
  std::vector<Group> groups_;
};

// The same in one launch for all runs, where LibTorch's operator takes one for each 320 chunks of 65,536 elements
// (aten/src/ATen/native/cuda/MultiTensorApply.cuh) of runs with equal weight decay, and others for the count of steps.
class ProgramAdamWOptimizer final : public FlatOptimizer {
 public:
  ProgramAdamWOptimizer(const Optimizer& options, const std::vector<Run>& runs, int64_t elements,
                        const MakeZeros& zeros)
      : numbers_{.beta1 = options.adamw().beta1(), .beta2 = options.adamw().beta2(), .epsilon = options.adamw().eps()},
        exp_avg_(zeros(elements)),
        exp_avg_sq_(zeros(elements)) {
    for (const Run& run : runs) {
      runs_.push_back({run.parameter, run.gradient, exp_avg_.narrow(0, run.begin, run.length),
                       exp_avg_sq_.narrow(0, run.begin, run.length), run.computed,
                       run.decay ? options.weight_decay() : 0.0});
    }
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    numbers_.step = step, numbers_.learning_rate = learning_rate, numbers_.factor = factor;
    units::UpdateByAdamW(runs_, numbers_);
  }

  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    numbers_.step = step, numbers_.learning_rate = learning_rate, numbers_.factor = 1;
    units::UpdateByAdamW(runs_, numbers_, {decision.divisor, decision.skip, decision.skipped, decision.now});
  }

  std::vector<StatePart> State() override { return {OfAll("exp_avg", exp_avg_), OfAll("exp_avg_sq", exp_avg_sq_)}; }

 private:
  units::AdamWNumbers numbers_;
  at::Tensor exp_avg_, exp_avg_sq_;
  std::vector<units::AdamWRun> runs_;
};

class SgdOptimizer final : public FlatOptimizer {
 public:
  SgdOptimizer(const Optimizer& options, std::vector<Run> runs, int64_t elements, const MakeZeros& zeros)
      : weight_decay_(options.weight_decay()),
        momentum_(options.sgd().momentum()),
        nesterov_(options.sgd().nesterov()),
        runs_(std::move(runs)) {
    if (momentum_ > 0) buffer_ = zeros(elements);
  }

  void Step(uint64_t, double learning_rate, double factor) override {
    for (const Run& run : runs_) {
      at::Tensor p = run.parameter, g = run.gradient;
      if (factor != 1.0) g.mul_(factor);
      if (run.decay && weight_decay_ != 0) g.add_(p, weight_decay_);
      if (momentum_ > 0) {
        // From zero the first step gives buffer = gradient, as torch.optim.SGD's first step does.
        at::Tensor b = buffer_.narrow(0, run.begin, run.length);
        b.mul_(momentum_).add_(g);
        if (nesterov_) {
          g.add_(b, momentum_);
        } else {
          g = b;
        }
      }
      p.add_(g, -learning_rate);
    }
  }

  void StepUnless(const UpdateDecision& decision, uint64_t, double learning_rate) override {
    for (const bool decay : {true, false}) {
      const std::vector<Run> runs = Select(runs_, decay);
      if (runs.empty()) continue;
      const auto update = [&](const auto& rate) {
        at::_fused_sgd_(Parameters(runs), Gradients(runs),
                        buffer_.defined() ? StateOf(buffer_, runs) : std::vector<at::Tensor>(),
                        decay ? weight_decay_ : 0.0, momentum_, rate, /*dampening=*/0.0, nesterov_, /*maximize=*/false,
                        /*is_first_step=*/false, decision.divisor, decision.skip);
      };
      decision.now.defined() ? update(RateOf(decision)) : update(learning_rate);
    }
  }

  std::vector<StatePart> State() override {
    if (!buffer_.defined()) return {};
    return {OfAll("momentum", buffer_)};
  }

 private:
  double weight_decay_, momentum_;
  bool nesterov_;
  std::vector<Run> runs_;
  at::Tensor buffer_;
};

class LionOptimizer final : public FlatOptimizer {
 public:
  LionOptimizer(const Optimizer& options, std::vector<Run> runs, int64_t elements, const MakeZeros& zeros)
      : beta1_(options.lion().beta1()),
        beta2_(options.lion().beta2()),
        weight_decay_(options.weight_decay()),
        runs_(std::move(runs)),
        exp_avg_(zeros(elements)) {}

  void Step(uint64_t, double learning_rate, double factor) override {
    ForEachBlock([&](const Block& block) {
      at::Tensor p = block.parameter, g = block.gradient, m = block.exp_avg, update = block.scratch;
      if (factor != 1.0) g.mul_(factor);
      update.copy_(m).mul_(beta1_).add_(g, 1 - beta1_).sign_();
      if (block.weight_decay != 0) p.mul_(1 - learning_rate * block.weight_decay);
      p.add_(update, -learning_rate);
      m.mul_(beta2_).add_(g, 1 - beta2_);
    });
  }

  // A skipped step multiplies parameters and momentum by 1 and adds 0.
  void StepUnless(const UpdateDecision& decision, uint64_t, double learning_rate) override {
    const at::Tensor skips = decision.skip.to(at::kBool), rate = UnlessSkipped(decision, learning_rate, 0),
                     keep = UnlessSkipped(decision, beta2_, 1),
                     shrink = UnlessSkipped(decision, 1 - learning_rate * weight_decay_, 1);
    ForEachBlock([&](const Block& block) {
      at::Tensor p = block.parameter, g = block.gradient, m = block.exp_avg, update = block.scratch;
      g.div_(decision.divisor).masked_fill_(skips, 0);
      update.copy_(m).mul_(beta1_).add_(g, 1 - beta1_).sign_();
      if (block.weight_decay != 0) p.mul_(shrink);
      p.sub_(update.mul_(rate));
      m.mul_(keep).add_(g, 1 - beta2_);
    });
  }

  std::vector<StatePart> State() override { return {OfAll("exp_avg", exp_avg_)}; }

 private:
  struct Block {
    at::Tensor parameter, gradient, exp_avg, scratch;
    double weight_decay;
  };

  // In blocks, because the momentum and the update both need the old momentum, so one of them needs memory of its own:
  // on a CPU few elements, which stay in cache, on a GPU many, so that launches do not dominate.
  template <typename Update>
  void ForEachBlock(const Update& update) {
    const int64_t most = exp_avg_.is_cuda() ? int64_t{1} << 22 : int64_t{1} << 14;
    int64_t longest = 0;
    for (const Run& run : runs_) longest = std::max(longest, run.length);
    const at::Tensor scratch = at::empty({std::min(most, longest)}, exp_avg_.options());
    for (const Run& run : runs_) {
      for (int64_t begin = 0; begin < run.length; begin += most) {
        const int64_t length = std::min(most, run.length - begin);
        update(Block{run.parameter.narrow(0, begin, length), run.gradient.narrow(0, begin, length),
                     exp_avg_.narrow(0, run.begin + begin, length), scratch.narrow(0, 0, length),
                     run.decay ? weight_decay_ : 0});
      }
    }
  }

  double beta1_, beta2_, weight_decay_;
  std::vector<Run> runs_;
  at::Tensor exp_avg_;
};

// An optimizer that does not know of the copies, and then they.
class CopyingOptimizer final : public FlatOptimizer {
 public:
  CopyingOptimizer(std::unique_ptr<FlatOptimizer> optimizer, const std::vector<Run>& runs)
      : optimizer_(std::move(optimizer)), parameters_(Parameters(runs)) {
    for (const Run& run : runs) computed_.push_back(run.computed);
  }

  void Step(uint64_t step, double learning_rate, double factor) override {
    optimizer_->Step(step, learning_rate, factor);
    Copy();
  }
  void StepUnless(const UpdateDecision& decision, uint64_t step, double learning_rate) override {
    optimizer_->StepUnless(decision, step, learning_rate);
    Copy();
  }
  std::vector<StatePart> State() override { return optimizer_->State(); }

 private:
  // On a GPU a few launches for all runs.
  void Copy() { at::_foreach_copy_(computed_, parameters_); }

  std::unique_ptr<FlatOptimizer> optimizer_;
  std::vector<at::Tensor> parameters_, computed_;
};

// Of fp32 parameters, without their copies.
std::unique_ptr<FlatOptimizer> MakeWithoutCopies(const Optimizer& options, const std::vector<Run>& runs,
                                                 int64_t elements, const MakeZeros& zeros) {
  if (options.has_adafactor()) return MakeAdafactor(options, runs, zeros);
  if (options.has_sgd()) return std::make_unique<SgdOptimizer>(options, runs, elements, zeros);
  if (options.has_lion()) return std::make_unique<LionOptimizer>(options, runs, elements, zeros);
  return std::make_unique<AdamWOptimizer>(options, runs, elements, zeros);
}

}  // namespace

bool TakesRateFromDevice(const Optimizer& options) { return options.has_adamw() || options.has_sgd(); }

std::unique_ptr<FlatOptimizer> MakeOptimizer(const Optimizer& options, std::vector<Run> runs, int64_t elements,
                                             const MakeZeros& zeros, const units::Gemms& gemms, bool by_programs) {
  if (!runs.empty() && runs.front().parameter.scalar_type() != at::kFloat) {
    return MakeNarrowWeightsOptimizer(options, runs, zeros, gemms, by_programs);
  }
  if (options.has_muon()) return MakeMuon(options, std::move(runs), zeros, gemms, by_programs);
  if (options.has_adamw() && by_programs) {
    return std::make_unique<ProgramAdamWOptimizer>(options, runs, elements, zeros);
  }
  auto optimizer = MakeWithoutCopies(options, runs, elements, zeros);
  if (runs.empty() || !runs.front().computed.defined()) return optimizer;
  return std::make_unique<CopyingOptimizer>(std::move(optimizer), runs);
}

}  // namespace muster::engine
