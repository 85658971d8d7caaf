// The interface of a unit. The engine calls forward and backward explicitly; autograd never crosses units.
//
// A unit's tensors are views into the engine's flat buffers; it never declares a shape. Gradients are added to the
// views of Parameter, never to `.grad`. Not thread-safe. Functions may throw c10::Error, which the engine turns into a
// Status.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "models/task.h"
#include "proto/inventory.pb.h"
#include "worker/units/dropout.h"
#include "worker/units/gemm.h"
#include "worker/units/named_tensors.h"
#include "worker/units/row_kernels.h"

namespace muster::plugin {
class Model;
}  // namespace muster::plugin

namespace muster::units {

enum class Mode {
  kTrain,
  kTrainUnsaved,  // as train, but saves nothing: kRecompute follows, or no backward does
  kRecompute,     // saves what train would have
  kEvaluate,
  kGenerate
};

// What a training step drops; dropout.h. All zero outside of training.
struct DropoutRates {
  double embedding = 0, attention = 0, residual = 0;
  uint64_t seed = 0, step = 0;
  int64_t first_sample = 0;        // among the step's samples of all ranks
  at::Tensor step_on_device = {};  // as DropoutPlace

  // The place of a unit: 0 its attention, or an embedding's sum; 1 what attention adds, 2 what the network adds. A
  // unit asks Context, which knows what it has of a sample.
  DropoutPlace At(double rate, int unit, uint32_t which) const {
    return {.rate = rate,
            .seed = seed,
            .step = static_cast<uint32_t>(step),
            .place = static_cast<uint32_t>(unit) * 4 + which,
            .first_sample = first_sample,
            .step_on_device = step_on_device};
  }
};

// The ranks that compute the same microbatch on samples of their own. Each makes the same calls in the same order, as
// the inventory declares (Unit.exchange), whether it has samples or not. Tensors are contiguous. A failure is thrown,
// also through autograd.
class SampleRanks {
 public:
  virtual ~SampleRanks() = default;
  // Of `values` [n]: [ranks, n], the same on every rank.
  virtual at::Tensor Gather(const at::Tensor& values) = 0;
  // In place, the sum over the ranks.
  virtual void Sum(const at::Tensor& values) = 0;
};

// The ranks that compute the same samples, each with its share of the unit's tensors (Inventory.tensor_ranks), or each
// with its part of the tokens (Inventory.context_ranks). Each makes the same calls in the same order, as the inventory
// declares (Unit.tensor_exchange, Unit.context_exchange). Tensors are contiguous, of any floating dtype, on the unit's
// device. A failure is thrown, also through autograd.
class TensorRanks {
 public:
  virtual ~TensorRanks() = default;
  virtual int64_t rank() const = 0;
  virtual int64_t size() const = 0;
  // In place, the sum over the ranks: the same bits on each. It is under way while the caller computes; `values` are
  // touched by no one else until Finish, which waits for all that was started.
  virtual void StartSum(const at::Tensor& values) = 0;
  // This rank's part [n, ...] of `all` [size * n, ...] becomes that of the sum over ranks, and the others are
  // overwritten. Until Finish as above.
  virtual void StartSumScattered(const at::Tensor& all) = 0;
  // `all` [size * n, ...] becomes the parts [n, ...] of all ranks in their order. `part` may be overwritten at once.
  virtual void StartGather(const at::Tensor& part, const at::Tensor& all) = 0;
  virtual void Finish() = 0;
  // Waits for the first that was started and not waited for.
  virtual void FinishFirst() = 0;

  void Gather(const at::Tensor& part, const at::Tensor& all) {
    StartGather(part, all);
    Finish();
  }
  void Sum(const at::Tensor& values) {
    StartSum(values);
    Finish();
  }
};

struct Context {
  Mode mode = Mode::kTrain;
  int microbatch = 0;
  int64_t samples = 0;  // zero only if the unit, or one after it, exchanges; then what the first unit reads has none
  // Of a pass of training: whether the units before need the gradients that Backward returns. If not, it may return
  // nothing.
  bool input_gradient = true;
  SampleRanks* ranks = nullptr;   // in training; null: this rank has all samples of the microbatch
  TensorRanks* tensor = nullptr;  // null: the unit is whole
  // Null: this rank has all tokens of its samples. Else those of models::RunsOf, and attention sees those of all.
  TensorRanks* sequence = nullptr;
  DropoutRates dropout;
  NamedTensors batch;    // the task's, [samples, ...]
  int64_t position = 0;  // position of the first token; nonzero in mode generate only
  double label_smoothing = 0;
  double loss_scale = 1.0;  // factor on each target's gradient: 1 / targets of the whole step
  // Another one, which the device decides: fp32 [1]. With fp16 it keeps small gradients in range. Undefined: 1.
  at::Tensor gradient_scale;
  // float64 scalar: the head adds its loss summed over the targets, in backward when training. Undefined: it computes
  // none, and the batch has only what the first unit reads.
  at::Tensor loss_sum;
  at::Tensor metric_sums;  // float64 [the task's metrics]: likewise in mode evaluate

  // DropoutRates::At of rows that are this rank's tokens, `tokens` of each sample.
  DropoutPlace DropoutOfTokens(double rate, int unit, uint32_t which, int64_t tokens) const;
  // That of the weights of attention from these tokens to all, as cpu_attention.h numbers them; `heads`: of this rank,
  // as many as of each other one of `tensor`.
  DropoutPlace DropoutOfWeights(int unit, int64_t heads, int64_t tokens) const;

  // Of a batch of tokens or images: token ids, int64 [samples, tokens]; images, fp32 [samples, C, H, W].
  const at::Tensor& inputs() const { return batch[models::kInputs]; }
  // int64 [samples, tokens] or [samples]; undefined: the head gives logits and no loss.
  const at::Tensor& targets() const { return batch[models::kTargets]; }
};

// Between units: hidden states [samples, tokens, width], or features [samples, C, H, W]. From the head: nothing or,
// without targets, logits (of a language model: after the last token) [samples, vocabulary or classes].
using Activations = std::vector<at::Tensor>;

// What one (unit, microbatch) saves from forward to backward; several may exist at once. In mode generate: the KV
// cache, which each call extends.
struct Saved {
  std::vector<at::Tensor> tensors;
};

// A parameter and where its gradient is added: views of equal shape. Gradients start at zero in each step. A frozen
// matrix (two dimensions or more) has none, so the unit spares its GEMM; that of a frozen vector is a scratch. Values
// in bf16 or fp16 have gradients in fp32, so that many small ones add up; otherwise both are of one dtype.
struct Parameter {
  at::Tensor value;
  at::Tensor gradient;
};

class UnitModule {
 public:
  virtual ~UnitModule() = default;

  // `saved` is filled in modes train, recompute and generate.
  virtual Activations Forward(const Context& context, const Activations& in, Saved& saved) = 0;

  // Adds the parameters' gradients to their sinks and returns the gradients of the inputs (none for an embedding).
  // `grads` are those of the outputs and may be overwritten; empty for the head, whose gradient begins with loss_scale.
  virtual Activations Backward(const Context& context, Saved saved, const Activations& grads) = 0;

  // Backward in two, of a unit whose inventory states deferred_bytes; any number of passes may lie between. The first
  // returns the gradients of the inputs, adds to no sink, and fills `deferred`, which holds nothing of the engine's
  // memory: neither parameters nor what another rank sent. The second adds the parameters' gradients without reading
  // parameters. With Context::tensor or sequence the first exchanges what Backward does, the second nothing. Others
  // throw.
  virtual Activations BackwardInputs(const Context& context, Saved saved, const Activations& grads, Saved& deferred);
  virtual void BackwardWeights(Saved deferred);
};

struct UnitOptions {
  bool portable = false;                      // LibTorch's operators and autograd only: the reference, on any device
  RowCode rows = RowCode::kVector;            // on a CPU: kDevice for what a GPU computes, less its GEMMs
  Bf16Gemms bf16_gemms = Bf16Gemms::kNative;  // on a CPU
  Fp32Gemms fp32_gemms = Fp32Gemms::kMkl;     // on a CPU
  // Of a custom model: the library's, whose modules the units bind to the parameters. Each engine has its own.
  std::shared_ptr<plugin::Model> plugin = nullptr;
  std::vector<at::Tensor> buffers = {};  // the unit's, in the inventory's order; it updates them in training
  int index = 0;                         // of the unit in the inventory
};

// `unit` is one of `inventory`. `parameters`: the unit's tensors in the inventory's order, then those it borrows.
// Unimplemented: this build has no code for its family or kind. InvalidArgument: another number of parameters or
// buffers.
absl::StatusOr<std::unique_ptr<UnitModule>> MakeUnit(const Inventory& inventory, const Unit& unit,
                                                     std::vector<Parameter> parameters,
                                                     const UnitOptions& options = {});

}  // namespace muster::units
