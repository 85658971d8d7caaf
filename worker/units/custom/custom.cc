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
    at::Tensor x = first_ ? Inputs(context) : in[0];
    if (last_ && context.targets.defined() && context.mode != Mode::kEvaluate) {
      // The loss and all that leads to it come in backward.
      if (train) saved.tensors = {std::move(x)};
      return {};
    }
    BindParameters();
    if (!train) {
      const c10::AutoGradMode off(false);
      unit_->Train(context.mode == Mode::kTrainUnsaved);
      if (context.mode == Mode::kGenerate && first_) x = Grown(x, saved);
      const at::Tensor y = unit_->Forward(x);
      if (!last_) return {y};
      if (!context.targets.defined()) return {OfLastToken(y)};
      Evaluate(context, y);
      return {};
    }
    unit_->Train(true);
    // A forward that is computed again does not count a batch twice in running statistics.
    const bool again = context.mode == Mode::kRecompute && !buffers_.empty();
    if (again) BindBuffers(Copies());
    const c10::AutoGradMode on(true);
    if (!first_) x = x.detach().requires_grad_(true);
    const at::Tensor y = unit_->Forward(x);
    if (again) BindBuffers(buffers_);
    saved.tensors = {x, y};
    return {y.detach()};
  }

  Activations Backward(const Context& context, Saved saved, const Activations& grads) override {
    if (!last_) return GradientsOf(saved.tensors[0], saved.tensors[1], grads[0]);
    BindParameters();
    unit_->Train(true);
    const c10::AutoGradMode on(true);
    at::Tensor x = std::move(saved.tensors[0]);
    saved = {};
    if (!first_) x = x.detach().requires_grad_(true);
    const at::Tensor y = unit_->Forward(x);
    if (const at::Tensor loss = model_->Loss(y, context.targets, context.label_smoothing); loss.defined()) {
      TORCH_CHECK(loss.numel() == 1, "the model's loss is not one number, but has the shape ", loss.sizes());
      const c10::AutoGradMode off(false);
      context.loss_sum.add_(loss.detach().sum(at::kDouble));
      at::Tensor scale = at::full_like(loss, context.loss_scale);
      if (context.gradient_scale.defined()) scale.mul_(context.gradient_scale.view(scale.sizes()));
      return GradientsOf(x, loss, scale);
    }
    at::Tensor d;
    {
      const c10::AutoGradMode off(false);
      d = AddLossForGradient(context, Logits(context, y.detach())).view(y.sizes()).to(y.scalar_type());
    }
    return GradientsOf(x, y, d);
  }

 private:
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

  // Images in the parameters' dtype; tokens as they are.
  at::Tensor Inputs(const Context& context) const {
    const at::Tensor& x = context.inputs;
    return x.is_floating_point() ? x.to(parameters_[0].value.scalar_type()) : x;
  }

  // The sequence so far, which is all that is kept of it.
  static at::Tensor Grown(const at::Tensor& tokens, Saved& saved) {
    saved.tensors.resize(1);
    at::Tensor& kept = saved.tensors[0];
    kept = kept.defined() ? at::cat({kept, tokens}, 1) : tokens;
    return kept;
  }
  at::Tensor OfLastToken(const at::Tensor& y) const {
    return model_->task().kind == plugin::Task::kLanguageModel ? y.select(1, y.size(1) - 1).contiguous() : y;
  }

  // [targets, classes], of at least fp32.
  at::Tensor Logits(const Context& context, const at::Tensor& y) const {
    const plugin::Task task = model_->task();
    const int64_t classes = task.kind == plugin::Task::kLanguageModel ? task.vocabulary : task.classes;
    TORCH_CHECK(y.dim() >= 2 && y.size(-1) == classes && y.numel() == classes * context.targets.numel(),
                "the last unit gives ", y.sizes(), ", but the logits of targets ", context.targets.sizes(), " have ",
                classes, " each");
    return y.reshape({-1, classes}).to(WideType(y.scalar_type()));
  }

  void Evaluate(const Context& context, const at::Tensor& y) const {
    if (const at::Tensor loss = model_->Loss(y, context.targets, 0); loss.defined()) {
      context.loss_sum.add_(loss.sum(at::kDouble));
      if (context.metric_sums.defined()) AddTopMetrics(context, Logits(context, y));
      return;
    }
    AddEvaluation(context, Logits(context, y));
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
  const bool first_, last_;
  const std::vector<Parameter> parameters_;
  const std::vector<at::Tensor> buffers_;
  std::vector<at::Tensor> leaves_, bound_buffers_;  // the modules'
};

}  // namespace

absl::StatusOr<std::unique_ptr<UnitModule>> MakeCustomUnit(const Model& model, const Unit& unit,
                                                           std::vector<Parameter> parameters,
                                                           const UnitOptions& options) {
  if (options.plugin == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("the model is custom: its library, ", model.custom().library(), ", is not loaded"));
  }
  const std::vector<plugin::Unit*> units = options.plugin->Units();
  const auto found =
      std::find_if(units.begin(), units.end(), [&](const plugin::Unit* u) { return u->name() == unit.name(); });
  if (found == units.end() || (*found)->Parameters().size() + (*found)->Borrows().size() != parameters.size() ||
      (*found)->Buffers().size() != options.buffers.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the library ", model.custom().library(), " has no such unit ", unit.name()));
  }
  if (!options.buffers.empty() && parameters[0].value.scalar_type() != at::kFloat) {
    return absl::UnimplementedError(absl::StrCat("precision.compute: unit ", unit.name(),
                                                 " has buffers, as batch normalization has, and those of custom models "
                                                 "compute in fp32 only"));
  }
  return std::make_unique<CustomUnit>(options.plugin, *found, std::move(parameters), options.buffers);
}

}  // namespace muster::units
