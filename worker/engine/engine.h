// Executes a schedule over a model's units on one rank. It knows no strategy, no file and no network.
//
// With several ranks, each calls Step and Evaluate as often as the others, on its own share of the batch. Ranks that
// share each sequence (Mesh::context) have the same samples, each the tokens of models::RunsOf.
//
//   auto engine = Engine::Create(config).value();
//   auto result = engine->Step(batch, LearningRate(spec, engine->step(), steps)).value();
//
// LibTorch's exceptions become a Status here, with rank, step and op. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "models/box.h"
#include "proto/inventory.pb.h"
#include "proto/manifest.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"
#include "worker/engine/batch.h"
#include "worker/engine/op_listener.h"
#include "worker/engine/recorder.h"
#include "worker/engine/step_scalars.h"
#include "worker/engine/stream_driver.h"
#include "worker/units/attention_choice.h"
#include "worker/units/bf16_gemms.h"
#include "worker/units/fp32_gemms.h"
#include "worker/units/unit.h"

namespace muster::engine {

// OutOfRange, of a loss, gradient or prediction that is not finite. A value of the data that is out of bounds has the
// same code, so callers tell the two apart by IsNonFinite.
absl::Status NonFiniteError(absl::string_view message);
bool IsNonFinite(const absl::Status& status);

struct Config {
  Inventory inventory;   // of the rank's stage, if there is a pipeline (strategies::StageModel)
  PartitionTable table;  // likewise
  uint32_t rank = 0;     // of the generation
  uint32_t shard = 0;    // of `table`
  Mesh mesh;             // of all ranks
  Schedule schedule;
  Schedule evaluation;
  Train train;  // resolved
  bool cuda = false;
  bool decide_on_device = false;  // decide skipping and clipping on the device; always so on a GPU
  // By Op::group; they outlive the engine. Null: no such group, or it has one rank.
  std::vector<collectives::Group*> groups = std::vector<collectives::Group*>(kGroups);
  OpListener* progress = nullptr;  // receives each op of a step; outlives the engine. May be null
  // Run later steps by the tasks of the first, in its memory: recorded_step.h. Where the device has graphs, the second
  // step of a shape is captured, and from then on a step is one launch.
  bool recorded = false;
  // For tests and for hunting a fault:
  bool poison = false;          // fill released parameters with NaN, to expose a use after release
  bool check_accesses = false;  // refuse an op that does not wait for another one with which it conflicts in memory
  bool streams = false;  // on a CPU: run ops by the queue that devices with streams have, and copy state to the host
  // On a CPU, with `streams`: their device, which runs what is issued at once. None: one without graphs.
  std::function<std::unique_ptr<StreamDriver>()> stream_driver = {};
  bool portable = false;  // units by LibTorch's operators and autograd, on any device
  // On a CPU: the units' row operations (units::RowCode::kDevice) and AdamW by the programs of GPUs.
  bool device_rows = false;
  bool unproven = false;  // run schedules that the checker refuses
  // In place of the trials of attention on a GPU, and also on a CPU.
  std::function<units::AttentionChoice(const units::AttentionShape&)> try_attention = {};
  // In place of units::CheckRowPrograms on a GPU, and also on a CPU.
  std::function<absl::Status()> check_rows = {};
  std::shared_ptr<plugin::Model> plugin;       // of a custom model (units::UnitOptions)
  std::optional<units::Bf16Gemms> bf16_gemms;  // on a CPU; none: chosen by its instruction set
  std::optional<units::Fp32Gemms> fp32_gemms;  // likewise
  int threads = 1;                             // LibTorch's threads; results are bit-equal for equal threads
};

struct Evaluation {
  double loss = 0;              // mean over the targets, nats
  std::vector<double> metrics;  // likewise, by the task's metrics

  // Of several batches: adds one of `samples`; after the last, divides by all samples.
  void Add(const Evaluation& batch, uint64_t samples) {
    loss += batch.loss * static_cast<double>(samples);
    metrics.resize(batch.metrics.size());
    for (size_t i = 0; i < metrics.size(); ++i) metrics[i] += batch.metrics[i] * static_cast<double>(samples);
  }
  void Divide(uint64_t samples) {
    loss /= static_cast<double>(samples);
    for (double& metric : metrics) metric /= static_cast<double>(samples);
  }
};

// What the units keep of a sequence that grows: keys and values. Empty at its start.
struct Cache {
  int64_t position = 0;             // of the next input
  uint64_t parameters_version = 0;  // Engine's at the first call
  std::vector<units::Saved> of_unit;
};

struct StepResult {
  double loss = 0;            // mean over the step's targets of all ranks, nats
  double gradient_norm = 0;   // global, before clipping
  Votes votes;                // counted over all ranks, equal on all of them
  double waited_seconds = 0;  // on a CPU: time blocked in collectives
  bool skipped = false;       // a number was not finite: the parameters were not updated, and training goes on
  double loss_scale = 1;      // by which this step's gradients were multiplied; 1 without fp16
  std::string note;           // of the step's issue, for the log: whether it was captured as a graph; usually empty
};

// A contiguous run of a tensor's elements that this rank owns, or a whole buffer, which every rank has. Valid until the
// engine is destroyed, of what is on a GPU until Push, and not to be read between BeginPull and AwaitPull.
struct StateView {
  std::string kind;             // "parameter", "buffer", or the optimizer's name for it: "exp_avg", "momentum_buffer"
  std::string tensor;           // inventory's name; of a factor of the rows from r on, r > 0, "name[r:]"
  std::vector<uint64_t> shape;  // of the whole tensor, or of its factor
  models::FlatBox box;          // the rank's share of it; all by default
  uint64_t begin = 0;           // element of the share
  absl::Span<float> values;     // host memory; of what is on a GPU a copy made by Pull() and written back by Push()
  absl::Span<uint16_t> bf16;    // in place of `values`: parameters that are stored so
  bool counts = true;           // checkpoints take it from this rank: no rank with another share has the same
  int32_t replica = -1;  // whose it is, where each has its own, and a model's is the sum of them all; -1: it is not so
};

class Engine {
 public:
  // Allocates the flat buffers and initialises parameters from (seed, tensor name, index).
  // InvalidArgument: schedule, table and inventory do not belong together. ResourceExhausted: memory.
  // FailedPrecondition: `cuda` in a build without it. Unimplemented: an op, unit or table that this engine cannot run.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const Config& config);
  virtual ~Engine() = default;

  // One optimizer step by the schedule: Issue, then Await. Internal: an op failed; the message names rank, step and op.
  // OutOfRange: the loss or the gradient is not finite, and the spec does not let it be skipped (on_nonfinite, and with
  // fp16 the loss scale); nothing was updated. InvalidArgument: the batch has the wrong
  // size or a value out of bounds, or the learning rate is negative or not finite. ResourceExhausted: memory.
  // Unavailable: a collective failed; the message names the ranks that are gone or lag. The engine is then unusable.
  // `votes` of all ranks are counted, so that all ranks learn of a request after the same step.
  absl::StatusOr<StepResult> Step(const Batch& batch, double learning_rate, const Votes& votes = {}) {
    absl::Status issued = Issue(batch, learning_rate, votes);
    return issued.ok() ? Await() : issued;
  }

  // Issue begins a step; Await returns the result of the earliest step that was issued. A GPU
  // need not wait for the host between two steps: issue one, and then one more before each Await. Errors as Step, from
  // either; after an error of a step none is in flight, and steps that were issued after the failed one updated
  // nothing. FailedPrecondition: most_in_flight steps are in flight, or none for Await. Every other method that reads
  // or changes the model needs that none is; those that return a Status say so.
  virtual absl::Status Issue(const Batch& batch, double learning_rate, const Votes& votes = {}) = 0;
  virtual absl::StatusOr<StepResult> Await() = 0;
  virtual int in_flight() const = 0;
  virtual int most_in_flight() const = 0;  // 1 on a CPU, where Issue computes

  // Means over all ranks' shares of a batch of any number of samples. Changes no state; runs at most a training
  // microbatch at a time. OutOfRange: the loss is not finite. Other errors as Step.
  virtual absl::StatusOr<Evaluation> Evaluate(const Batch& batch) = 0;

  // What the last unit computes of the tensor "inputs" [samples, ...] without targets, in fp32 on the CPU: the logits
  // of a classifier [samples, classes], those after the last token of a language model [samples, vocabulary]. With
  // `cache`, the inputs follow those of earlier calls with it (a language model's next tokens, in any number).
  // InvalidArgument: a value out of bounds. OutOfRange: the result is not finite. FailedPrecondition: this rank has
  // only a part of the model or of each sequence, or its parameters are offloaded, or the parameters changed since the
  // cache's first call, or the first unit reads other tensors.
  virtual absl::StatusOr<at::Tensor> Predict(const at::Tensor& inputs, Cache* cache = nullptr) = 0;

  // Record starts timing ops; TakeRecord returns the spans since then and stops.
  virtual void Record() = 0;
  virtual std::vector<OpSpan> TakeRecord() = 0;

  virtual uint64_t step() const = 0;  // steps done, skipped ones included
  // What decides about the next update, as of the last step that was awaited.
  virtual UpdateState update_state() const = 0;
  // After loading a checkpoint. FailedPrecondition: a step is in flight.
  virtual absl::Status SetProgress(uint64_t step, const UpdateState& update) = 0;

  // Changes with the parameters.
  virtual uint64_t parameters_version() const = 0;

  // All state of a checkpoint, in table order.
  virtual std::vector<StateView> State() = 0;
  // On a GPU: Pull copies State() to the host, Push back to the device. On a CPU nothing is copied. Call Push after
  // changing parameters.
  virtual absl::Status Pull() = 0;
  virtual absl::Status Push() = 0;
  // Pull in two parts, between which steps may run: they go on while the bytes travel, up to their update of what is
  // being copied, which waits on the device. State() of what is no copy is as ever that of the last step. AwaitPull may
  // be called on another thread, while BeginPull is not.
  virtual absl::Status BeginPull() = 0;
  virtual absl::Status AwaitPull() const = 0;
  // Whether some of it is no copy, and so changes with the next step.
  virtual bool state_is_live() const = 0;

  // On a GPU: the implementation of attention, the same on all ranks; else empty. Another one gives other bits, so a
  // run that resumes uses that of its checkpoint. UseAttention on every rank alike; InvalidArgument: there is none of
  // that name.
  virtual std::string attention() const = 0;
  virtual absl::Status UseAttention(const std::string& name) = 0;

  // Choices made at startup, for the log: on a GPU, the implementation of attention, and why the units do without our
  // row programs if they do; on a CPU, the implementation of bf16 GEMMs.
  virtual std::vector<std::string> Notes() const = 0;

  // Peak bytes of live tensors: the process's CPU tensors, or those on the GPU.
  virtual uint64_t peak_memory_bytes() const = 0;
  // What is in use on the GPU beside LibTorch's memory: context, communicators, and whatever else runs there; on a CPU
  // 0. strategies::FixedBytes plans it.
  virtual uint64_t fixed_memory_bytes() const = 0;
  // What is offloaded, in host memory or a file; on a CPU part of the peak, unless it is a file.
  virtual uint64_t host_memory_bytes() const = 0;
};

}  // namespace muster::engine
