#include "worker/plugins/measure.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "models/custom/custom.h"
#include "models/inventory.h"
#include "models/inventory_build.h"
#include "worker/engine/cpu_allocator.h"
#include "worker/engine/initialise.h"
#include "worker/units/unit.h"

namespace muster::plugins {
namespace {

// What a sample takes is the difference between these, which leaves out what does not grow with them. At least
// two: batch normalization of one sample may have a single value.
constexpr int64_t kFewSamples = 2, kMoreSamples = 4;

// Floating-point operations of the operators that this thread runs while it lives.
class FlopCounter {
 public:
  FlopCounter() {
    flops = 0;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Begin, &End)
                                             .needsInputs(true)
                                             .needsOutputs(true)
                                             .scopes({at::RecordScope::FUNCTION}));
  }
  ~FlopCounter() { at::removeCallback(handle_); }
  FlopCounter(const FlopCounter&) = delete;

  double taken() const { return flops; }

 private:
  // Of an operator that runs: its inputs are gone when its outputs are there.
  struct Running : at::ObserverContext {
    double own = 0, for_each_output = 0;
  };

  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction& op) {
    auto running = std::make_unique<Running>();
    CountOperator(op.name(), op.inputs(), *running);
    return running;
  }
  static void End(const at::RecordFunction& op, at::ObserverContext* context) {
    const auto& running = static_cast<const Running&>(*context);
    flops += running.own;
    if (running.for_each_output == 0 || op.outputs().empty() || !op.outputs()[0].isTensor()) return;
    flops += running.for_each_output * static_cast<double>(op.outputs()[0].toTensor().numel());
  }

  static at::Tensor TensorAt(c10::ArrayRef<const c10::IValue> values, size_t index) {
    return index < values.size() && values[index].isTensor() ? values[index].toTensor() : at::Tensor();
  }
  // The operators that others are made of.
  static void CountOperator(const std::string& name, c10::ArrayRef<const c10::IValue> inputs, Running& running) {
    const bool adds = name == "aten::addmm" || name == "aten::baddbmm";
    const bool attends = absl::StartsWith(name, "aten::_scaled_dot_product_flash_attention");
    if (adds || name == "aten::mm" || name == "aten::bmm") {
      const at::Tensor a = TensorAt(inputs, adds ? 1 : 0), b = TensorAt(inputs, adds ? 2 : 1);
      if (a.defined() && b.defined()) {
        running.own = 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
      }
    } else if (name == "aten::convolution") {
      const at::Tensor weight = TensorAt(inputs, 1);
      if (weight.defined()) running.for_each_output = 2.0 * static_cast<double>(weight.numel() / weight.size(0));
    } else if (attends) {
      const at::Tensor query = TensorAt(inputs, 0), key = TensorAt(inputs, 1);
      if (query.defined() && key.defined()) {
        running.own = 4.0 * static_cast<double>(query.numel()) * static_cast<double>(key.size(-2));
      }
    }
  }

  static thread_local double flops;
  at::CallbackHandle handle_;
};
thread_local double FlopCounter::flops = 0;

struct Taken {
  uint64_t saved = 0, output = 0, forward = 0, backward = 0;  // bytes
  at::Tensor out;
};

// One unit with parameters and buffers of its own.
class Trial {
 public:
  // `dtype`: of its parameters.
  Trial(const Loaded& loaded, int index, at::ScalarType dtype = at::kFloat)
      : loaded_(loaded),
        unit_(loaded.structure.units(index)),
        first_(index == 0),
        last_(index + 1 == loaded.structure.units_size()) {
    std::vector<units::Parameter> parameters;
    for (const Tensor& tensor : unit_.tensors()) parameters.push_back(Make(tensor, dtype));
    for (const Borrow& borrow : unit_.borrows()) parameters.push_back(Make(Find(borrow), dtype));
    for (const units::Parameter& parameter : parameters) gradients_.push_back(parameter.gradient);
    units::UnitOptions options;
    options.plugin = loaded.model;
    for (const Tensor& tensor : unit_.buffers()) options.buffers.push_back(Make(tensor, at::kFloat).value);
    Inventory inventory;
    inventory.set_family(models::CustomFamily().name());
    *inventory.mutable_model()->mutable_custom() = loaded.structure;
    auto made = units::MakeUnit(inventory, unit_, std::move(parameters), options);
    TORCH_CHECK(made.ok(), std::string(made.status().message()));
    module_ = *std::move(made);
  }

  Taken Run(int64_t samples, const units::NamedTensors& batch, const at::Tensor& in) {
    units::Context context;
    context.samples = samples;
    context.batch = batch;
    context.loss_sum = at::zeros({}, at::kDouble);
    const units::Activations before = in.defined() ? units::Activations{in} : units::Activations{};
    Taken taken;
    const uint64_t start = engine::CpuMemoryUse().bytes;
    engine::ResetCpuMemoryPeak();
    units::Saved saved;
    units::Activations out;
    out = module_->Forward(context, before, saved);
    const engine::CpuMemory forward = engine::CpuMemoryUse();
    if (!out.empty()) {
      taken.out = out[0];
      TORCH_CHECK(taken.out.dim() >= 1 && taken.out.size(0) == samples && taken.out.is_floating_point(), "gives ",
                  taken.out.toString(), " ", taken.out.sizes(), " for ", samples,
                  " samples: the first dimension must be the samples, of a floating-point type");
      taken.output = taken.out.nbytes();
    }
    const uint64_t read = BatchBytes(batch) + (in.defined() ? in.nbytes() : 0);
    taken.saved = forward.bytes - start - std::min(forward.bytes - start, taken.output) + read;
    taken.forward = forward.peak_bytes - forward.bytes;
    units::Activations gradient;
    if (!last_) gradient = {at::randn(taken.out.sizes())};
    const uint64_t turn = engine::CpuMemoryUse().bytes;
    engine::ResetCpuMemoryPeak();
    module_->Backward(context, std::move(saved), gradient);
    taken.backward = engine::CpuMemoryUse().peak_bytes - turn;
    return taken;
  }

  // What it gives without a loss.
  at::Tensor Forward(units::Mode mode, int64_t samples, const units::NamedTensors& batch, const at::Tensor& in) {
    units::Context context;
    context.mode = mode;
    context.samples = samples;
    context.batch = batch;
    units::Saved saved;
    return module_->Forward(context, in.defined() ? units::Activations{in} : units::Activations{}, saved).at(0);
  }

  // Of the last unit: what is no sum over the samples, such as a mean or a root of one, would depend on the cut into
  // microbatches.
  void CheckSums(int64_t samples, const units::NamedTensors& batch, const at::Tensor& in) {
    const auto sums = [&](int64_t first, int64_t count) {
      units::NamedTensors part;
      for (const BatchTensor& tensor : loaded_.structure.task().tensors()) {
        part.Set(tensor.name(), batch[tensor.name()].narrow(0, first, count));
      }
      return Evaluate(count, part, in.defined() ? in.narrow(0, first, count) : in);
    };
    const int64_t half = samples / 2;
    const at::Tensor whole = sums(0, samples), first = sums(0, half), second = sums(half, samples - half);
    // Parts of opposite signs may cancel.
    const at::Tensor limit = first.abs().add_(second.abs()).mul_(1e-3).add_(1e-9);
    const at::Tensor wrong = whole.sub(first).sub_(second).abs_().gt(limit);
    for (int64_t i = 0; i < wrong.numel(); ++i) {
      TORCH_CHECK(
          !wrong[i].item<bool>(), "the ",
          i == 0 ? std::string("loss") : "metric " + loaded_.structure.task().metrics(static_cast<int>(i) - 1),
          " is not a sum over the samples: for a mean, give the sum (torch::Reduction::Sum), which Muster divides "
          "by the number of samples of all ranks");
    }
  }

  void CheckGradients() const {
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const bool own = static_cast<int>(i) < unit_.tensors_size();
      TORCH_CHECK(gradients_[i].any().item<bool>(), "has no gradient of ",
                  own ? unit_.tensors(static_cast<int>(i)).name() : std::string("a tied tensor"),
                  " on random samples: does its forward use it?");
    }
  }

 private:
  // float64: the loss, and the metrics, summed.
  at::Tensor Evaluate(int64_t samples, const units::NamedTensors& batch, const at::Tensor& in) {
    const int metrics = loaded_.structure.task().metrics_size();
    const at::Tensor sums = at::zeros({1 + metrics}, at::kDouble);
    units::Context context;
    context.mode = units::Mode::kEvaluate;
    context.samples = samples;
    context.batch = batch;
    context.loss_sum = sums[0];
    context.metric_sums = sums.narrow(0, 1, metrics);
    units::Saved saved;
    module_->Forward(context, in.defined() ? units::Activations{in} : units::Activations{}, saved);
    return sums;
  }
  // What this unit is the first to read of the batch.
  uint64_t BatchBytes(const units::NamedTensors& batch) const {
    uint64_t bytes = 0;
    for (const BatchTensor& tensor : loaded_.structure.task().tensors()) {
      if (first_ ? tensor.input() || (last_ && tensor.target()) : last_ && tensor.target() && !tensor.input()) {
        bytes += batch[tensor.name()].nbytes();
      }
    }
    return bytes;
  }

  static units::Parameter Make(const Tensor& tensor, at::ScalarType dtype) {
    const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    units::Parameter made{at::empty(shape), at::zeros(shape)};
    engine::Initialise(/*seed=*/1, tensor, 0,
                       absl::MakeSpan(made.value.mutable_data_ptr<float>(), static_cast<size_t>(made.value.numel())));
    made.value = made.value.to(dtype);
    return made;
  }
  const Tensor& Find(const Borrow& borrow) const {
    for (const Unit& unit : loaded_.structure.units()) {
      for (const Tensor& tensor : unit.tensors()) {
        if (unit.name() == borrow.unit() && tensor.name() == borrow.tensor()) return tensor;
      }
    }
    TORCH_CHECK(false, "borrows ", borrow.tensor(), ", which no unit has");
  }

  const Loaded& loaded_;
  const Unit& unit_;
  const bool first_, last_;
  std::vector<at::Tensor> gradients_;
  std::unique_ptr<units::UnitModule> module_;
};

units::NamedTensors RandomBatch(const Task& task, int64_t samples) {
  units::NamedTensors batch;
  for (const BatchTensor& tensor : task.tensors()) {
    std::vector<int64_t> shape = {samples};
    shape.insert(shape.end(), tensor.shape().begin(), tensor.shape().end());
    if (tensor.type() == BatchTensor::INT64) {
      batch.Set(tensor.name(), at::randint(static_cast<int64_t>(tensor.bound()), shape, at::kLong));
    } else {
      // Targets between 0 and 1, which losses of probabilities and of counts take, too.
      batch.Set(tensor.name(), tensor.target() ? at::rand(shape) : at::randn(shape));
    }
  }
  return batch;
}

uint64_t PerSample(uint64_t few, uint64_t more) {
  const auto samples = static_cast<uint64_t>(kMoreSamples - kFewSamples);
  return more > few ? (more - few + samples - 1) / samples : 0;
}

void SetBytes(const Taken& few, const Taken& more, Unit& unit) {
  // A batch's own bytes are rounded up, and each allocation to 64.
  unit.set_saved_bytes(PerSample(few.saved, more.saved));
  unit.set_output_bytes(more.output / kMoreSamples);
  unit.set_forward_bytes(PerSample(few.forward, more.forward));
  unit.set_backward_bytes(PerSample(few.backward, more.backward));
  const uint64_t grown = kMoreSamples * unit.backward_bytes();
  unit.set_backward_constant_bytes(more.backward > grown ? more.backward - grown : 0);
}

// What the unit gives where its parameters are bf16. Undefined: it computes in fp32 only.
at::Tensor GiveInBf16(const Loaded& loaded, int index, const units::NamedTensors& batch, const at::Tensor& in) {
  try {
    return Trial(loaded, index, at::kBFloat16).Forward(units::Mode::kTrainUnsaved, kFewSamples, batch, in);
  } catch (const std::exception&) {
    return {};
  }
}

// Declares what goes to the next unit. `given`: by as many samples as were measured; `narrow`: with bf16 parameters.
// Neither of Activation's types: it stays unknown.
void SetOutputs(const Taken (&given)[2], const at::Tensor& narrow, Unit& unit) {
  const at::Tensor& out = given[1].out;
  const at::IntArrayRef shape = out.sizes().slice(1);
  const bool by_sample = given[0].out.sizes().slice(1) == shape;
  const bool wide = narrow.defined() && narrow.scalar_type() == at::kFloat,
             known = wide || !narrow.defined() || narrow.scalar_type() == at::kBFloat16;
  if (!by_sample || !known || out.scalar_type() != at::kFloat) return;
  models::AddOutput(unit, "output", {shape.begin(), shape.end()}, wide ? Activation::FP32 : Activation::COMPUTE);
}

// Whether LibTorch's generator of random numbers has moved since.
class GeneratorWatch {
 public:
  GeneratorWatch() : before_(State()) {}
  bool moved() const { return !at::equal(before_, State()); }

 private:
  static at::Tensor State() { return at::detail::getDefaultCPUGenerator().get_state(); }
  const at::Tensor before_;
};

// The inputs of a unit: by number of samples, and in bf16.
struct Inputs {
  at::Tensor by_samples[2];
  at::Tensor narrow;
};

void MeasureUnit(Loaded& loaded, int index, const units::NamedTensors (&batch)[2], Inputs& inputs) {
  at::Tensor(&in)[2] = inputs.by_samples;
  Trial trial(loaded, index);
  const int64_t samples[] = {kFewSamples, kMoreSamples};
  // Not measured: what operators allocate once for the process.
  trial.Run(samples[1], batch[1], in[1]);
  Taken taken[2];
  for (int i = 0; i < 2; ++i) taken[i] = trial.Run(samples[i], batch[i], in[i]);
  trial.CheckGradients();
  Unit& unit = *loaded.structure.mutable_units(index);
  SetBytes(taken[0], taken[1], unit);
  const auto forward = [&](units::Mode mode) { return trial.Forward(mode, samples[1], batch[1], in[1]); };
  at::Tensor first;
  {
    const FlopCounter counter;
    first = forward(units::Mode::kEvaluate);
    // At least the output's elements are computed: a unit of no operations takes time, too.
    unit.set_forward_flops(std::max(counter.taken(), static_cast<double>(first.numel())) / kMoreSamples);
  }
  TORCH_CHECK(at::equal(first, forward(units::Mode::kEvaluate)),
              "gives other bits for the same inputs: a job could not resume where it was");
  const GeneratorWatch watch;
  forward(units::Mode::kTrainUnsaved);
  TORCH_CHECK(!watch.moved(),
              "draws random numbers from LibTorch's generator, which a recomputed forward or a resumed job would draw "
              "differently: leave them out");
  if (index + 1 == loaded.structure.units_size()) return trial.CheckSums(samples[1], batch[1], in[1]);
  inputs.narrow = GiveInBf16(loaded, index, batch[0], inputs.narrow);
  SetOutputs(taken, inputs.narrow, unit);
  if (!inputs.narrow.defined()) inputs.narrow = taken[0].out.to(at::kBFloat16);
  for (int i = 0; i < 2; ++i) in[i] = taken[i].out;
}

}  // namespace

absl::Status Measure(Loaded& loaded) {
  engine::InstallCpuAllocator();
  const c10::AutoGradMode off(false);
  const Task& task = loaded.structure.task();
  units::NamedTensors batch[2];
  try {
    batch[0] = RandomBatch(task, kFewSamples), batch[1] = RandomBatch(task, kMoreSamples);
  } catch (const c10::Error& e) {
    return absl::InvalidArgumentError(absl::StrCat(loaded.structure.library(), ": a batch of ", kMoreSamples,
                                                   " samples: ", e.what_without_backtrace()));
  }
  Inputs in;
  for (int u = 0; u < loaded.structure.units_size(); ++u) {
    const auto failed = [&](absl::string_view why) {
      return absl::InvalidArgumentError(
          absl::StrCat(loaded.structure.library(), ": unit ", loaded.structure.units(u).name(), ": ", why));
    };
    try {
      MeasureUnit(loaded, u, batch, in);
    } catch (const c10::Error& e) {
      std::string why = e.what_without_backtrace();
      if (absl::StrContains(why, "meta")) {
        absl::StrAppend(&why, "; a tensor that the constructor made has no values: use muster::Constant");
      }
      return failed(why);
    } catch (const std::exception& e) {
      return failed(e.what());
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::plugins
