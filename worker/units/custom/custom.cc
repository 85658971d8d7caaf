#include "worker/units/custom/custom.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sdk/muster/plugin.h"
#include "worker/units/autograd.h"
#include "worker/units/logits_loss.h"
#include "worker/units/row_kernels.h"

namespace muster::units {
namespace {

// Gives a module's tensor the storage of `values`. Modules hold handles of the tensor, so its implementation changes;
// set_data would refuse, because the tensor was made on the meta device.
void Bind(const at::Tensor& tensor, const at::Tensor& values) {
  tensor.unsafeGetTensorImpl()->shallow_copy_from(values.detach().getIntrusivePtr());
}

class CustomUnit final : public UnitModule {
 public:
  // `unit`: one of the model's.
  CustomUnit(std::shared_ptr<plugin::Model> model, plugin::Unit* unit, std::vector<Parameter> parameters,
             std::vector<at::Tensor> buffers)
      : model_(std::move(model)),
        unit_(unit),
        task_(model_->task()),
        first_(model_->Units().front() == unit),
        last_(model_->Units().back() == unit),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)) {
    for (const plugin::Tensor& own : unit_->Parameters()) leaves_.push_back(own.tensor);
    for (const plugin::Borrowed& borrowed : unit_->Borrows()) leaves_.push_back(borrowed.tensor);
    for (const plugin::Tensor& buffer : unit_->Buffers()) bound_buffers_.push_back(buffer.tensor);
    BindBuffers(buffers_);
  }

  // The modules stay in the library's model: they give back the memory, and may be bound again.
  ~CustomUnit() override {
    for (const std::vector<at::Tensor>& bound : {leaves_, bound_buffers_}) {
      for (const at::Tensor& tensor : bound) Bind(tensor, at::empty(tensor.sizes(), at::kMeta));
    }
  }
  CustomUnit(const CustomUnit&) = delete;

  Activations Forward(const Context& context, const Activations& in, Saved& saved) override {
    const bool train = context.mode == Mode::kTrain || context.mode == Mode::kRecompute;
    Tensors x = first_ ? Inputs(context) : in;
    const bool has_loss = last_ && context.loss_sum.defined();
    if (has_loss && context.mode != Mode::kEvaluate) {
      // The loss and all that leads to it come in backward.
      if (train) saved.tensors = std::move(x);
      return {};
    }
    BindParameters();
    if (!train) {
      const c10::AutoGradMode off(false);
      unit_->Train(context.mode == Mode::kTrainUnsaved);
      if (context.mode == Mode::kGenerate && first_) x = {Grown(x[0], saved)};
      const at::Tensor y = unit_->Forward(x);
      if (!last_) return {y};
      if (!has_loss) return {OfLastToken(y)};
      Evaluate(context, y);
      return {};
    }
    unit_->Train(true);
    // A forward that is computed again does not count a batch twice in running statistics.
    const bool again = context.mode == Mode::kRecompute && !buffers_.empty();
    if (again) BindBuffers(Copies());
    const c10::AutoGradMode on(true);
    if (!first_) x = {x[0].detach().requires_grad_(context.input_gradient)};
    const at::Tensor y = unit_->Forward(x);
    if (again) BindBuffers(buffers_);
    saved.tensors = std::move(x);
    saved.tensors.push_back(y);
    return {y.detach()};
  }

  Activations Backward(const Context& context, Saved saved, const Activations& grads) override {
    if (!last_) return GradientsOf(saved.tensors[0], saved.tensors.back(), grads[0]);
    BindParameters();
    unit_->Train(true);
    const c10::AutoGradMode on(true);
    Tensors x = std::move(saved.tensors);
    if (!first_) x = {x[0].detach().requires_grad_(context.input_gradient)};
    const at::Tensor y = Output(unit_->Forward(x));
    if (const at::Tensor loss = Loss(context, y, context.label_smoothing); loss.defined()) {
      const c10::AutoGradMode off(false);
      context.loss_sum.add_(loss.detach().sum(at::kDouble));
      at::Tensor scale = at::full_like(loss, context.loss_scale);
      if (context.gradient_scale.defined()) scale.mul_(context.gradient_scale.view(scale.sizes()));
      return GradientsOf(x[0], loss, scale);
    }
    at::Tensor d;
    {
      const c10::AutoGradMode off(false);
      d = AddLossForGradient(context, Logits(context, y.detach())).view(y.sizes()).to(y.scalar_type());
    }
    return GradientsOf(x[0], y, d);
  }

 private:
  using Tensors = std::vector<at::Tensor>;

  // A borrowed tensor is bound by each unit that uses it.
  void BindParameters() const {
    for (size_t i = 0; i < leaves_.size(); ++i) {
      const at::Tensor& value = parameters_[i].value;
      if (leaves_[i].is_meta() || !leaves_[i].is_alias_of(value)) Bind(leaves_[i], value);
    }
  }
  void BindBuffers(const std::vector<at::Tensor>& values) const {
    for (size_t i = 0; i < values.size(); ++i) Bind(bound_buffers_[i], values[i]);
  }
  std::vector<at::Tensor> Copies() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& buffer : buffers_) copies.push_back(buffer.clone());
    return copies;
  }

  // Floating-point numbers in the parameters' dtype; integers as they are.
  Tensors Inputs(const Context& context) const {
    Tensors inputs;
    if (task_.kind != plugin::Task::kTensors) inputs.push_back(context.inputs());
    for (const plugin::BatchTensor& tensor : task_.tensors) {
      if (tensor.input) inputs.push_back(context.batch[tensor.name]);
    }
    for (at::Tensor& x : inputs) {
      if (x.is_floating_point()) x = x.to(parameters_[0].value.scalar_type());
    }
    return inputs;
  }
  Tensors Targets(const Context& context) const {
    if (task_.kind != plugin::Task::kTensors) return {context.targets()};
    Tensors targets;
    for (const plugin::BatchTensor& tensor : task_.tensors) {
      if (tensor.target) targets.push_back(context.batch[tensor.name]);
    }
    return targets;
  }

  // What the loss and the metrics of a model of named tensors get: beside fp32 targets, of at least fp32.
  at::Tensor Output(const at::Tensor& y) const {
    return task_.kind == plugin::Task::kTensors && y.is_floating_point() ? y.to(WideType(y.scalar_type())) : y;
  }
  // Undefined: cross entropy.
  at::Tensor Loss(const Context& context, const at::Tensor& y, double label_smoothing) const {
    at::Tensor loss = model_->Loss(y, Targets(context), label_smoothing);
    TORCH_CHECK(!loss.defined() || loss.numel() == 1, "the model's loss is not one number, but has the shape ",
                loss.sizes());
    TORCH_CHECK(loss.defined() || task_.kind != plugin::Task::kTensors, "the model gives no loss");
    return loss;
  }

  // The sequence so far, which is all that is kept of it.
  static at::Tensor Grown(const at::Tensor& tokens, Saved& saved) {
    saved.tensors.resize(1);
    at::Tensor& kept = saved.tensors[0];
    kept = kept.defined() ? at::cat({kept, tokens}, 1) : tokens;
    return kept;
  }
  at::Tensor OfLastToken(const at::Tensor& y) const {
    return task_.kind == plugin::Task::kLanguageModel ? y.select(1, y.size(1) - 1).contiguous() : y;
  }

  // [targets, classes], of at least fp32.
  at::Tensor Logits(const Context& context, const at::Tensor& y) const {
    const int64_t classes = task_.kind == plugin::Task::kLanguageModel ? task_.vocabulary : task_.classes;
    TORCH_CHECK(y.dim() >= 2 && y.size(-1) == classes && y.numel() == classes * context.targets().numel(),
                "the last unit gives ", y.sizes(), ", but the logits of targets ", context.targets().sizes(), " have ",
                classes, " each");
    return y.reshape({-1, classes}).to(WideType(y.scalar_type()));
  }

  void Evaluate(const Context& context, const at::Tensor& y) const {
    const at::Tensor output = Output(y);
    const at::Tensor loss = Loss(context, output, 0);
    if (!loss.defined()) return AddEvaluation(context, Logits(context, y));
    context.loss_sum.add_(loss.sum(at::kDouble));
    if (!context.metric_sums.defined()) return;
    if (task_.kind == plugin::Task::kTensors) {
      AddMetrics(context, output);
    } else {
      AddTopMetrics(context, Logits(context, y));
    }
  }
  void AddMetrics(const Context& context, const at::Tensor& output) const {
    const Tensors sums = model_->Metrics(output, Targets(context));
    TORCH_CHECK(sums.size() == task_.metrics.size() && context.metric_sums.numel() == static_cast<int64_t>(sums.size()),
                "the model gives ", sums.size(), " metrics, but declares ", task_.metrics.size());
    for (size_t i = 0; i < sums.size(); ++i) {
      TORCH_CHECK(sums[i].defined() && sums[i].numel() == 1, "the metric ", task_.metrics[i], " is not one number");
      context.metric_sums[static_cast<int64_t>(i)].add_(sums[i].sum(at::kDouble));
    }
  }

  // Adds the leaves' gradients to their sinks; returns that of `x`, if it has one.
  Activations GradientsOf(const at::Tensor& x, const at::Tensor& y, const at::Tensor& d) const {
    std::vector<at::Tensor> inputs, sinks;
    for (size_t i = 0; i < leaves_.size(); ++i) {
      if (!parameters_[i].gradient.defined()) continue;  // frozen
      inputs.push_back(leaves_[i]);
      sinks.push_back(parameters_[i].gradient);
    }
    if (x.requires_grad()) inputs.push_back(x);
    if (inputs.empty()) return {};
    std::vector<at::Tensor> gradients = PossibleGradients(y, d, inputs);
    const c10::AutoGradMode off(false);
    for (size_t i = 0; i < sinks.size(); ++i) {
      if (gradients[i].defined()) sinks[i].add_(gradients[i]);
    }
    if (!x.requires_grad()) return {};
    TORCH_CHECK(gradients.back().defined(), "unit ", unit_->name(), " does not use its input");
    return {std::move(gradients.back())};
  }

  const std::shared_ptr<plugin::Model> model_;
  plugin::Unit* const unit_;
  const plugin::Task task_;
  const bool first_, last_;
  const std::vector<Parameter> parameters_;
  const std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> leaves_, bound_buffers_;  // the modules'
};

}  // namespace

absl::StatusOr<std::unique_ptr<UnitModule>> MakeCustomUnit(const Inventory& inventory, const Unit& unit,
                                                           std::vector<Parameter> parameters,
                                                           const UnitOptions& options) {
  if (options.plugin == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is custom: its library, ", inventory.model().custom().library(), ", is not loaded"));
  }
  const std::vector<plugin::Unit*> units = options.plugin->Units();
  const auto found =
      std::find_if(units.begin(), units.end(), [&](const plugin::Unit* u) { return u->name() == unit.name(); });
  if (found == units.end() || (*found)->Parameters().size() + (*found)->Borrows().size() != parameters.size() ||
      (*found)->Buffers().size() != options.buffers.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the library ", inventory.model().custom().library(), " has no such unit ", unit.name()));
  }
  return std::make_unique<CustomUnit>(options.plugin, *found, std::move(parameters), options.buffers);
}

}  // namespace muster::units
