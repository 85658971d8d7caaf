#include "worker/engine/engine.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "strategies/compression.h"
#include "strategies/optimizer_plan.h"
#include "worker/engine/attention.h"
#include "worker/engine/check_config.h"
#include "worker/engine/compressed_sums.h"
#include "worker/engine/cpu_allocator.h"
#include "worker/engine/dtype.h"
#include "worker/engine/exchanges.h"
#include "worker/engine/failed.h"
#include "worker/engine/host_memory.h"
#include "worker/engine/in_flight_microbatches.h"
#include "worker/engine/initialise.h"
#include "worker/engine/offloaded_inputs.h"
#include "worker/engine/optimizer.h"
#include "worker/engine/queue.h"
#include "worker/engine/received.h"
#include "worker/engine/recorded_step.h"
#include "worker/engine/state.h"
#include "worker/engine/step_tasks.h"
#include "worker/engine/storage.h"
#include "worker/engine/stream_queue.h"
#include "worker/engine/tensor_exchanges.h"
#include "worker/engine/update_decision.h"
#include "worker/units/bf16_gemms.h"
#include "worker/units/gemm.h"
#include "worker/units/unit.h"
#include "worker/units/vector_functions.h"

#ifdef MUSTER_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#endif

namespace muster::engine {
namespace {

using units::Activations;
using units::Context;
using units::Mode;

constexpr absl::Duration kPullPoll = absl::Microseconds(200);
constexpr char kNonFinite[] = "muster/non_finite";  // a payload of such a status

class CompiledEngine final : public Engine {
 public:
  explicit CompiledEngine(const Config& config)
      : config_(config),
        device_(config.cuda ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU)),
        portable_(config.portable),
        rules_(RulesOf(config.train)),
        host_(config.train.offload().to(), /*page_locked=*/config.cuda),
        recorder_(config.cuda) {
    if (config.groups[kExchangeGroup] != nullptr)
      exchanges_.emplace(config.groups[kExchangeGroup], &recorder_, config.progress);
    if (models::IsShare(config.inventory)) {
      tensor_.emplace(config.groups[kTensorGroup], "the ranks of its other shares", &recorder_, config.progress);
    }
    if (models::ContextRanks(config.inventory) > 1) {
      sequence_.emplace(config.groups[kContextGroup], "the ranks that share its samples", &recorder_, config.progress);
    }
  }

  // What is being copied to the host's memory is written there.
  ~CompiledEngine() override {
    if (queue_ != nullptr) AwaitPull().IgnoreError();
  }

  absl::Status Prepare();

  absl::Status Issue(const Batch& batch, double learning_rate, const Votes& votes) override;
  absl::StatusOr<StepResult> Await() override;
  int in_flight() const override { return static_cast<int>(in_flight_.size()); }
  int most_in_flight() const override { return queue_->runs_ahead() ? 2 : 1; }
  absl::StatusOr<Evaluation> Evaluate(const Batch& batch) override;
  absl::StatusOr<at::Tensor> Predict(const at::Tensor& inputs, Cache* cache) override;
  void Record() override { recorder_.Start(); }
  std::vector<OpSpan> TakeRecord() override { return recorder_.Take(); }
  uint64_t step() const override { return step_; }
  UpdateState update_state() const override { return awaited_update_; }
  absl::Status SetProgress(uint64_t step, const UpdateState& update) override;
  uint64_t parameters_version() const override { return parameters_version_; }
  std::vector<StateView> State() override { return state_->Views(); }
  absl::Status Pull() override;
  absl::Status Push() override;
  absl::Status BeginPull() override;
  absl::Status AwaitPull() const override;
  bool state_is_live() const override { return state_->live(); }
  std::vector<std::string> Notes() const override { return notes_; }
  std::string attention() const override { return attention_; }
  absl::Status UseAttention(const std::string& name) override;
  uint64_t peak_memory_bytes() const override;
  uint64_t fixed_memory_bytes() const override;
  uint64_t host_memory_bytes() const override { return host_.bytes(); }

 private:
  // Turns LibTorch's exceptions into a Status that names rank, step and op.
  template <typename F>
  absl::Status Guarded(F&& body);
  template <typename F>
  static absl::Status Caught(F&& body);

  void Initialise();
  // Of this rank's bf16 matrices on a CPU: those of the units, and those of Muon's update, which may be offloaded.
  void ChooseGemms();
  absl::Status MakeUnits();
  void MakeState();
  void MakeBuffers();
  void MakeInputs();
  void MakeReceived();
  // Every rank takes the first one's.
  void ShareBuffers();
  at::Tensor ToDevice(const at::Tensor& host) const;
  Context MakeContext(const Batch& batch, int64_t first, int64_t rows, Mode mode);
  int64_t MicrobatchRows(const Batch& batch) const;

  absl::Status MakeQueue();
  // The memory of trials is not the step's: neither its peak, nor what the allocator keeps.
  void ForgetTrials() const;
  // Issues all ops of a schedule.
  void Run(const Schedule& schedule, StepTasks& tasks, OpListener* listener);
  void PostAll(const Schedule& schedule, StepTasks& tasks);
  // Of the steps so far, once the next one begins after their sends: it needs the memory of what they sent last.
  void EndSends();
  struct Training;
  // What the ops of a step work on. Recorded, one serves many steps: then no task may use what is only right in the
  // first of them, of which `step` and `learning_rate` are.
  struct StepWork {
    uint64_t step = 0;
    double learning_rate = 0;
    Training* host = nullptr;  // that of its step; null: recorded
    StepTensors tensors = {};
    std::optional<StepInputs> inputs = {};        // recorded
    std::optional<UpdateDecision> decision = {};  // made by the step's first OptimizerStep
    at::Tensor seen = {};                         // on the device: what seen_on_host becomes
    std::optional<InFlightMicrobatches> microbatches = {};
    std::optional<StepTasks> tasks = {};
    int runs = 0;                       // op by op
    std::unique_ptr<Graph> graph = {};  // recorded: null until it was captured
  };
  // A step that was issued and not awaited. The device may still use what it holds.
  struct Training {
    uint64_t global_targets = 0;
    at::Tensor seen_on_host = {};  // its scalars and norm, its loss scale, and the update's state after it
    StepResult result = {};
    UpdateState update = {};
    bool halted = false;
    std::shared_ptr<StepWork> work = {};
  };
  // The host must know before it updates what is offloaded.
  bool DecidesOnDevice() const {
    return !storage_->offloads() && (config_.decide_on_device || config_.streams || device_.is_cuda());
  }
  absl::Status CheckIssue(const Batch& batch, double learning_rate) const;
  absl::Status CheckIdle() const;
  absl::Status CheckPrediction(const at::Tensor& inputs, const Cache* cache) const;
  static void ReadResult(Training& training);
  void SetUpdateState(const UpdateState& state);
  std::string Why(const StepResult& result) const;
  // Waits for the steps after one that failed.
  void DropInFlight();
  // After a read back from the device, whose numbers look whole even where a collective was aborted.
  absl::Status GroupsHealth() const;
  // Each once: one group may serve several axes.
  std::vector<collectives::Group*> Groups() const;

  std::vector<Context> MakeContexts(const Batch& batch, const at::Tensor& loss_sum);
  // A step's work; with Config::recorded the recorded one, if it has the batch's shape.
  std::shared_ptr<StepWork> WorkOf(const Batch& batch, double learning_rate, Training& training);
  // Captures a recorded step that ran once as a graph. None on any rank if one cannot; then no later step is, either.
  // Returns what to log.
  std::string Capture(StepWork& work);
  // Whether this is so on all ranks.
  bool AllAgree(bool so) const;
  void Launch(StepWork& work);
  void WriteScalars(const Votes& votes, const at::Tensor& scalars) const;
  // What the first unit reads, of zero samples.
  units::NamedTensors NoInputs() const;
  void Train(StepWork& work);
  // The loss and the task's metrics, summed over the targets of `rows` samples: float64 [1 + metrics] on the device.
  at::Tensor ForwardOnly(const Batch& batch, int64_t first, int64_t rows);
  bool CountsLoss() const { return config_.inventory.tensor_rank() == 0; }
  uint64_t TargetsOf(uint64_t samples) const { return samples * models::WholeTargetsPerSample(config_.inventory); }
  void Decide(StepWork& work);
  // To the host, when the device has reached this; the host does not wait.
  void CopyBack(const at::Tensor& seen, Training& training) const;
  void Optimize(StepWork& work, const Op& op);
  // Rebuilds what is derived from the parameters after they change.
  void Renew();

  const Config config_;
  const at::Device device_;
  bool portable_;  // units by LibTorch's operators
  const UpdateRules rules_;
  HostMemory host_;
  uint64_t step_ = 0;
  std::optional<Storage> storage_;
  std::vector<std::unique_ptr<units::UnitModule>> units_;
  std::vector<std::vector<at::Tensor>> buffers_;  // by unit
  at::Tensor flat_buffers_;                       // all of them; undefined: the model has none
  at::Tensor kept_buffers_;                       // as before the step; undefined: no step may be skipped
  std::optional<Exchanges> exchanges_;            // none: units exchange nothing
  std::optional<TensorExchanges> tensor_;         // none: units are whole
  std::optional<TensorExchanges> sequence_;       // none: this rank has all tokens of its samples
  at::Tensor uncounted_;                          // takes the loss that another share's rank counts
  std::optional<OffloadedInputs> inputs_;         // none: no unit's are
  std::optional<ReceivedActivations> received_;   // none: there are no other stages
  std::optional<units::Bf16Gemms> bf16_gemms_;    // none: there are no such matrices
  units::Fp32Gemms fp32_gemms_ = units::Fp32Gemms::kMkl;
  std::map<int32_t, std::unique_ptr<FlatOptimizer>> optimizers_;  // by the first unit of their OptimizerStep
  std::optional<CompressedSums> sums_;                            // none: they are exact
  std::optional<engine::State> state_;
  Recorder recorder_;
  std::unique_ptr<Queue> queue_;
  std::shared_ptr<StepWork> recorded_;  // null: none, or the next step is recorded anew
  bool captures_ = false;               // steps as graphs
  std::deque<std::unique_ptr<Training>> in_flight_;
  at::Tensor update_;           // update_decision.h
  at::Tensor gradient_scale_;   // its loss scale for the units; undefined: there is none
  UpdateState awaited_update_;  // that after the last step that was awaited
  uint64_t parameters_version_ = 1;
  std::vector<std::string> notes_;
  std::string attention_;

  // What it is at, formatted only for an error message.
  struct {
    uint64_t step = 0;  // 0: the one after those that are done
    const char* what = "";
    const Schedule* schedule = nullptr;
    int32_t op = -1;  // of `schedule`
  } at_;
};

template <typename F>
absl::Status CompiledEngine::Caught(F&& body) {
  try {
    body();
    return absl::OkStatus();
  } catch (const Failed& failed) {
    return failed.status;
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const c10::Error& e) {
    const std::string what = e.what_without_backtrace();
    const bool memory = absl::StrContains(what, "can't allocate memory") || absl::StrContains(what, "out of memory");
    return memory ? absl::ResourceExhaustedError(absl::StrCat(what, "; a smaller batch.microbatch needs less"))
                  : absl::InternalError(what);
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

template <typename F>
absl::Status CompiledEngine::Guarded(F&& body) {
  at_ = {};
  absl::Status status = Caught(std::forward<F>(body));
  if (status.ok()) return status;
  if (queue_ != nullptr) queue_->Abandon();
  in_flight_.clear();
  const bool had_graph = recorded_ != nullptr && recorded_->graph != nullptr;
  recorded_.reset();
  // A group's abort goes on only now, and then it learns whose fault it is.
  if (had_graph) {
    if (absl::Status failure = GroupsHealth(); !failure.ok()) status = failure;
  }
  std::string where = absl::StrCat("rank ", config_.rank, ", step ", at_.step > 0 ? at_.step : step_ + 1);
  if (*at_.what != 0) absl::StrAppend(&where, ", ", at_.what);
  if (at_.schedule != nullptr) absl::StrAppend(&where, ", ", Print(at_.schedule->ops[at_.op], config_.inventory));
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

absl::Status CompiledEngine::Prepare() {
  if (absl::Status s = CheckConfig(config_, StepTasks::Runs); !s.ok()) return s;
  InstallCpuAllocator();
  units::ChooseVectorFunctions();
  absl::Status made = absl::OkStatus();
  absl::Status guarded = Guarded([&] {
    at_.what = "allocating the model";
    at::set_num_threads(config_.threads);
    // Not warn_only: attention's backward only takes its deterministic path without it (units/attention_choice.h), and
    // an operator that has none fails here instead of breaking the promise later. CPU kernels are deterministic anyway.
    const bool deterministic = device_.is_cpu() || IsDeterministic(config_.train);
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/false);
    at::globalContext().setAllowTF32CuBLAS(config_.train.precision().tf32());
    // Deterministic mode alone also fills every new tensor with NaN, a needless pass over memory: the engine never
    // reads uninitialized memory.
    at::globalContext().setDeterministicFillUninitializedMemory(false);
    const Precision& precision = config_.train.precision();
    const bool communicates = config_.groups[kWorldGroup] != nullptr;
    storage_.emplace(Storage::Options{.inventory = &config_.inventory,
                                      .table = &config_.table,
                                      .schedule = &config_.schedule,
                                      .shard = config_.shard,
                                      .shards_inside = config_.mesh.shards_inside,
                                      .replicas_inside = config_.mesh.replicas_inside,
                                      .device = device_,
                                      .compute = ScalarTypeOf(precision.compute()),
                                      .master = ScalarTypeOf(strategies::StoredDtype(config_.train, /*frozen=*/false)),
                                      .reduce = communicates ? ScalarTypeOf(precision.reduce()) : at::kFloat,
                                      .poison = config_.poison,
                                      .host = config_.train.offload().optimizer() ? &host_ : nullptr});
    if (config_.schedule.host_input_slots > 0) MakeInputs();
    if (!config_.schedule.edges.empty()) MakeReceived();
    ThrowIfBad(MakeQueue());
    Initialise();
    Renew();
    if (device_.is_cuda() || config_.try_attention || config_.check_rows) {
      at_.what = "trying kernels";
      absl::StatusOr<Kernels> kernels = AgreeOnKernels(config_, device_);
      ThrowIfBad(kernels.status());
      attention_ = kernels->attention;
      portable_ |= kernels->portable;
      notes_.insert(notes_.end(), kernels->notes.begin(), kernels->notes.end());
      ForgetTrials();
    }
    MakeBuffers();
    ChooseGemms();
    made = MakeUnits();
    if (made.ok()) MakeState();
  });
  return guarded.ok() ? made : guarded;
}

absl::Status CompiledEngine::MakeQueue() {
  const QueueOptions options{
      .inventory = &config_.inventory, .recorder = &recorder_, .check_accesses = config_.check_accesses};
  absl::StatusOr<std::unique_ptr<Streams>> streams = std::unique_ptr<Streams>();
  if (config_.streams) streams = MakeInlineStreams();
  if (config_.stream_driver) streams = MakeEventStreams(config_.stream_driver());
#ifdef MUSTER_CUDA
  if (device_.is_cuda()) streams = MakeCudaStreams(device_.index());
#endif
  if (!streams.ok()) return streams.status();
  queue_ = *streams == nullptr ? MakeHostQueue(options) : MakeStreamQueue(options, *std::move(streams));
  captures_ = config_.recorded && queue_->captures();
  return absl::OkStatus();
}

void CompiledEngine::MakeInputs() {
  inputs_.emplace(OffloadedInputs::Options{
      .schedule = &config_.schedule,
      .inventory = &config_.inventory,
      .host = &host_,
      .samples = strategies::MicrobatchRows(config_.train.batch(), config_.mesh.sample_ranks()),
      .device = device_,
      .poison = config_.poison});
}

void CompiledEngine::MakeReceived() {
  received_.emplace(ReceivedActivations::Options{
      .schedule = &config_.schedule,
      .evaluation = &config_.evaluation,
      .inventory = &config_.inventory,
      .samples = strategies::MicrobatchRows(config_.train.batch(), config_.mesh.sample_ranks()),
      .device = device_,
      .compute = ScalarTypeOf(config_.train.precision().compute())});
}

void CompiledEngine::Initialise() {
  for (const OwnedExtent& extent : storage_->extents()) {
    // Through a buffer, where they are elsewhere or in another dtype.
    constexpr int64_t kAtOnce = 1 << 20;
    const bool there = extent.stored.is_cpu() && extent.stored.scalar_type() == at::kFloat;
    for (int64_t begin = 0; begin < extent.length; begin += there ? extent.length : kAtOnce) {
      const int64_t length = there ? extent.length : std::min(kAtOnce, extent.length - begin);
      const at::Tensor host = there ? extent.stored : at::empty({length}, at::kFloat);
      engine::Initialise(config_.train.seed(), *extent.tensor, static_cast<uint64_t>(extent.begin + begin),
                         absl::MakeSpan(host.mutable_data_ptr<float>(), static_cast<size_t>(length)));
      if (!there) extent.stored.narrow(0, begin, length).copy_(host);
    }
  }
}

void CompiledEngine::ChooseGemms() {
  const Dtype compute = config_.train.precision().compute();
  const bool on_cpu = device_.is_cpu(), updates = on_cpu || storage_->offloads();
  if ((on_cpu && compute == DTYPE_BF16) || (updates && config_.train.optimizer().has_muon())) {
    const units::Bf16Choice choice = units::ChooseBf16Gemms();
    bf16_gemms_ = config_.bf16_gemms.value_or(choice.gemms);
    if (!config_.bf16_gemms.has_value()) notes_.push_back(choice.log);
  }
  // Panels are fp32 matrices. Portable units multiply by LibTorch's operators.
  const bool through_panels = compute == DTYPE_FP16 || bf16_gemms_ == units::Bf16Gemms::kPanels;
  if (on_cpu && !portable_ && (ScalarTypeOf(compute) == at::kFloat || through_panels)) {
    const units::Fp32Choice choice = units::ChooseFp32Gemms();
    fp32_gemms_ = config_.fp32_gemms.value_or(choice.gemms);
    if (!config_.fp32_gemms.has_value()) notes_.push_back(choice.log);
  }
}

absl::Status CompiledEngine::MakeUnits() {
  units::UnitOptions options{.portable = portable_,
                             .rows = config_.device_rows ? units::RowCode::kDevice : units::RowCode::kVector,
                             .plugin = config_.plugin};
  if (bf16_gemms_.has_value()) options.bf16_gemms = *bf16_gemms_;
  options.fp32_gemms = fp32_gemms_;
  if (device_.is_cpu() && config_.train.precision().compute() == DTYPE_FP16) {
    notes_.emplace_back("fp16 GEMMs: through fp32 panels, about as fast as fp32");
  }
  for (int32_t u = 0; u < config_.inventory.units_size(); ++u) {
    options.buffers = buffers_[static_cast<size_t>(u)];
    options.index = static_cast<int>(models::ModelUnit(config_.inventory, u));
    auto made = units::MakeUnit(config_.inventory, config_.inventory.units(u), storage_->Parameters(u), options);
    if (!made.ok()) return made.status();
    units_.push_back(*std::move(made));
  }
  return absl::OkStatus();
}

void CompiledEngine::SetUpdateState(const UpdateState& state) {
  awaited_update_ = state;
  // In place: a recorded step knows them by their addresses.
  const at::Tensor update = ToTensor(state, device_), scale = update.narrow(0, kLossScale, 1).to(at::kFloat);
  if (!update_.defined()) {
    update_ = update;
    if (strategies::ScalesLoss(config_.train)) gradient_scale_ = scale;
    return;
  }
  update_.copy_(update);
  if (gradient_scale_.defined()) gradient_scale_.copy_(scale);
}

absl::Status CompiledEngine::SetProgress(uint64_t step, const UpdateState& update) {
  if (absl::Status s = CheckIdle(); !s.ok()) return s;
  step_ = step;
  return Guarded([&] { SetUpdateState(update); });
}

void CompiledEngine::MakeBuffers() {
  int64_t elements = 0;
  for (const Unit& unit : config_.inventory.units()) {
    for (const Tensor& tensor : unit.buffers()) elements += static_cast<int64_t>(models::Elements(tensor));
  }
  if (elements > 0) {
    flat_buffers_ = at::empty({elements}, at::TensorOptions(at::kFloat).device(device_));
    if (strategies::MaySkipSteps(config_.train)) kept_buffers_ = at::empty_like(flat_buffers_);
  }
  int64_t begin = 0;
  for (const Unit& unit : config_.inventory.units()) {
    std::vector<at::Tensor>& buffers = buffers_.emplace_back();
    for (const Tensor& tensor : unit.buffers()) {
      const std::vector<int64_t> shape(tensor.shape().begin(), tensor.shape().end());
      const auto length = static_cast<int64_t>(models::Elements(tensor));
      buffers.push_back(flat_buffers_.narrow(0, begin, length).view(shape));
      buffers.back().fill_(tensor.init().kind() == Initialisation::ONES ? 1 : 0);
      begin += length;
    }
  }
}

// Those of the first of the ranks that train the same units: along one axis after the other.
void CompiledEngine::ShareBuffers() {
  if (!flat_buffers_.defined()) return;
  for (const int32_t axis : {kShardGroup, kReplicaGroup}) {
    collectives::Group* const group = config_.groups[axis];
    if (group != nullptr) ThrowIfBad(group->Broadcast(flat_buffers_, /*root=*/0)->Wait());
  }
}

void CompiledEngine::MakeState() {
  SetUpdateState(FirstUpdateState(config_.train));
  state_.emplace(&storage_->extents(), /*copy_all=*/config_.streams, CoordinateOf(config_.mesh, config_.rank).replica);
  state_->AddParameters();
  const Optimizer options = strategies::AppliedOptimizer(config_.train, strategies::SumsOverReplicas(config_.schedule));
  const auto whole = [&](int32_t unit, const Tensor& tensor) {
    return strategies::IsUpdatedWhole(options, config_.inventory, unit, tensor);
  };
  const auto zeros = [this](int64_t elements) {
    if (storage_->offloads()) return host_.Zeros(elements, at::kFloat);
    return at::zeros({elements}, at::TensorOptions(at::kFloat).device(device_));
  };
  const bool by_programs = !portable_ && !storage_->offloads() && (device_.is_cuda() || config_.device_rows);
  for (const Op& op : config_.schedule.ops) {
    if (op.kind != OpKind::kOptimizerStep) continue;
    const int32_t unit = std::max(0, op.unit), unit_end = op.unit < 0 ? config_.inventory.units_size() : op.unit_end;
    auto& optimizer = optimizers_[unit] =
        MakeOptimizer(options, storage_->Runs(unit, unit_end, whole), storage_->TrainedElements(unit, unit_end), zeros,
                      units::Gemms(bf16_gemms_.value_or(units::Bf16Gemms::kNative), fp32_gemms_), by_programs);
    for (StatePart part : optimizer->State()) {
      part.begin += storage_->FirstTrained(unit);
      state_->Add(part);
    }
  }
  if (strategies::Compresses(config_.train.communication()) && strategies::SumsOverReplicas(config_.schedule)) {
    sums_.emplace(config_, *storage_, device_);
    sums_->AddTo(*state_);
  }
  for (int32_t u = 0; u < config_.inventory.units_size(); ++u) {
    const Unit& unit = config_.inventory.units(u);
    for (int32_t b = 0; b < unit.buffers_size(); ++b) {
      state_->AddBuffer(&unit.buffers(b), buffers_[static_cast<size_t>(u)][static_cast<size_t>(b)]);
    }
  }
}

at::Tensor CompiledEngine::ToDevice(const at::Tensor& host) const {
  if (device_.is_cpu()) return host;
  // Pinned, so that the copy to a GPU is asynchronous.
  const at::Tensor pinned = at::empty(host.sizes(), host.options().pinned_memory(true));
  pinned.copy_(host);
  return pinned.to(device_, /*non_blocking=*/true);
}

Context CompiledEngine::MakeContext(const Batch& batch, int64_t first, int64_t rows, Mode mode) {
  Context context;
  context.mode = mode;
  context.loss_scale = 1.0 / static_cast<double>(TargetsOf(batch.global_samples));
  context.tensor = tensor_.has_value() ? &*tensor_ : nullptr;
  context.sequence = sequence_.has_value() ? &*sequence_ : nullptr;
  if (rows == 0) return context;
  context.samples = rows;
  for (const BatchTensor& described : config_.inventory.task().tensors()) {
    context.batch.Set(described.name(), ToDevice(batch.tensors[described.name()].narrow(0, first, rows)));
  }
  return context;
}

// Rows of a microbatch: from the spec, else the rank's whole share of a step.
int64_t CompiledEngine::MicrobatchRows(const Batch& batch) const {
  const int64_t rows = config_.train.batch().microbatch();
  return rows > 0 ? rows : static_cast<int64_t>(batch.samples);
}

std::vector<Context> CompiledEngine::MakeContexts(const Batch& batch, const at::Tensor& loss_sum) {
  if (!CountsLoss()) uncounted_ = at::zeros_like(loss_sum);
  const int64_t samples = static_cast<int64_t>(batch.samples), rows = MicrobatchRows(batch);
  std::vector<Context> contexts(config_.schedule.microbatches);
  for (int m = 0; m < config_.schedule.microbatches; ++m) {
    const int64_t first = std::min(samples, m * rows);
    contexts[m] = MakeContext(batch, first, std::min(rows, samples - first), Mode::kTrain);
    contexts[m].microbatch = m;
    if (exchanges_.has_value()) {
      contexts[m].ranks = &*exchanges_;
      if (contexts[m].samples == 0) contexts[m].batch = NoInputs();
    }
    // All shares' ranks compute the same loss.
    contexts[m].loss_sum = CountsLoss() ? loss_sum : uncounted_;
    contexts[m].gradient_scale = gradient_scale_;
    const Dropout& dropout = config_.train.dropout();
    contexts[m].dropout = {.embedding = dropout.embedding(),
                           .attention = dropout.attention(),
                           .residual = dropout.residual(),
                           .seed = config_.train.seed(),
                           .step = at_.step,
                           .first_sample = static_cast<int64_t>(batch.first_sample) + first};
    contexts[m].label_smoothing = config_.train.label_smoothing();
  }
  return contexts;
}

units::NamedTensors CompiledEngine::NoInputs() const {
  units::NamedTensors inputs;
  for (const BatchTensor& described : config_.inventory.task().tensors()) {
    if (!described.input()) continue;
    std::vector<int64_t> shape = {0};
    shape.insert(shape.end(), described.shape().begin(), described.shape().end());
    inputs.Set(described.name(), at::empty(shape, at::TensorOptions(DtypeOf(described)).device(device_)));
  }
  return inputs;
}

void CompiledEngine::Run(const Schedule& schedule, StepTasks& tasks, OpListener* listener) {
  queue_->Begin(schedule, listener);
  EndSends();
  PostAll(schedule, tasks);
}

void CompiledEngine::EndSends() {
  for (const auto& training : in_flight_) training->work->microbatches->EndSends();
}

void CompiledEngine::PostAll(const Schedule& schedule, StepTasks& tasks) {
  at_.schedule = &schedule;
  for (int32_t index = 0; index < static_cast<int32_t>(schedule.ops.size()); ++index) {
    at_.op = index;
    ThrowIfBad(queue_->Post(index, tasks.TaskOf(schedule.ops[index])));
  }
}

void CompiledEngine::WriteScalars(const Votes& votes, const at::Tensor& scalars) const {
  static_assert(sizeof(StepScalars) == Traits(OpKind::kReduceScalars).scalar_bytes);  // what the cost model takes
  const StepScalars own = ToScalars(votes);
  at::Tensor(scalars).zero_();
  for (size_t i = 0; i < kStepScalars; ++i) {
    if (own[i] != 0) scalars[static_cast<int64_t>(i)].fill_(own[i]);
  }
}

std::shared_ptr<CompiledEngine::StepWork> CompiledEngine::WorkOf(const Batch& batch, double learning_rate,
                                                                 Training& training) {
  if (recorded_ != nullptr && recorded_->inputs->shape == ShapeOf(batch)) return recorded_;
  auto work = std::make_shared<StepWork>();
  work->step = at_.step, work->learning_rate = learning_rate;
  work->host = config_.recorded ? nullptr : &training;
  work->tensors.scalars = at::empty({kStepScalars}, at::TensorOptions(at::kDouble).device(device_));
  const InFlightMicrobatches::Options options{.schedule = &config_.schedule,
                                              .inventory = &config_.inventory,
                                              .modules = &units_,
                                              .exchanges = exchanges_.has_value() ? &*exchanges_ : nullptr,
                                              .tensor = tensor_.has_value() ? &*tensor_ : nullptr,
                                              .sequence = sequence_.has_value() ? &*sequence_ : nullptr,
                                              .inputs = inputs_.has_value() ? &*inputs_ : nullptr,
                                              .received = received_.has_value() ? &*received_ : nullptr,
                                              .groups = &config_.groups,
                                              .compute = ScalarTypeOf(config_.train.precision().compute()),
                                              .poison = config_.poison};
  std::vector<Context> contexts = MakeContexts(batch, work->tensors.scalars[kLossSum]);
  if (config_.recorded) work->inputs.emplace(batch, MicrobatchRows(batch), device_, contexts);
  work->microbatches.emplace(options, std::move(contexts));
  work->tasks.emplace(StepTasks::Context{.config = &config_,
                                         .storage = &*storage_,
                                         .microbatches = &*work->microbatches,
                                         .tensors = &work->tensors,
                                         .update = [this, own = work.get()](const Op& op) { Optimize(*own, op); },
                                         .device = device_,
                                         .sums = sums_.has_value() ? &*sums_ : nullptr,
                                         .step = at_.step - 1});
  // A step of another shape, as the last one of an epoch, does not cost the graph.
  if (config_.recorded && (recorded_ == nullptr || recorded_->graph == nullptr)) recorded_ = work;
  return work;
}

bool CompiledEngine::AllAgree(bool so) const {
  collectives::Group* const world = config_.groups[kWorldGroup];
  if (world == nullptr) return so;
  const at::Tensor against = at::full({1}, so ? 0 : 1, at::TensorOptions(at::kInt).device(device_));
  ThrowIfBad(world->AllReduce(against)->Wait());
  const bool agreed = against.item<int>() == 0;
  ThrowIfBad(GroupsHealth());
  return agreed;
}

std::string CompiledEngine::Capture(StepWork& work) {
  at_.what = "capturing the step as a graph";
  const std::vector<collectives::Group*> groups = Groups();
  for (collectives::Group* group : groups) {
    const absl::Status begun = group->BeginCapture();
    for (collectives::Group* other : groups) begun.ok() ? void() : other->EndCapture();
    ThrowIfBad(begun);
  }
  const c10::AutoGradMode off(false);
  work.decision.reset();
  storage_->ZeroGradients();
  EndSends();
  absl::Status captured = queue_->BeginCapture(config_.schedule);
  if (captured.ok()) {
    captured = Caught([&] { PostAll(config_.schedule, *work.tasks); });
    absl::StatusOr<std::unique_ptr<Graph>> graph = queue_->EndCapture();
    captured.Update(graph.status());
    if (captured.ok()) work.graph = *std::move(graph);
  }
  for (collectives::Group* group : groups) group->EndCapture();
  // That a group has failed is not a matter of the capture.
  ThrowIfBad(GroupsHealth());
  captures_ = AllAgree(captured.ok());
  const std::string op = at_.schedule == nullptr ? "" : Print(at_.schedule->ops[at_.op], config_.inventory);
  at_.schedule = nullptr;
  if (captures_) return "from this step on, a step is one launch of a CUDA graph";
  recorded_.reset();
  return absl::StrCat("steps go on without a CUDA graph: ", captured.ok() ? "another rank could not capture one"
                                                                          : absl::StrCat(op, ": ", captured.message()));
}

void CompiledEngine::Launch(StepWork& work) {
  storage_->ZeroGradients();
  if (recorder_.on()) recorder_.End("Prepare");
  queue_->Begin(config_.schedule, config_.progress);
  EndSends();
  ThrowIfBad(queue_->AfterCopy());  // somewhere in the graph is the update
  // A mark: where the device is stuck, it has begun the graph or it has not.
  ThrowIfBad(queue_->Append("the step before", [] { return absl::OkStatus(); }));
  ThrowIfBad(queue_->Append("the graph of the step", [&] { return work.graph->Launch(); }));
  for (collectives::Group* group : Groups()) ThrowIfBad(group->Launched());
  ++parameters_version_;
}

void CompiledEngine::Train(StepWork& work) {
  const c10::AutoGradMode off(false);
  if (kept_buffers_.defined()) kept_buffers_.copy_(flat_buffers_);
  if (work.graph != nullptr) return Launch(work);
  ++work.runs;
  work.decision.reset();
  storage_->ZeroGradients();
  if (recorder_.on()) recorder_.End("Prepare");
  Run(config_.schedule, *work.tasks, config_.progress);
}

std::vector<collectives::Group*> CompiledEngine::Groups() const {
  std::vector<collectives::Group*> groups;
  for (collectives::Group* group : config_.groups) {
    if (group != nullptr && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

absl::Status CompiledEngine::GroupsHealth() const {
  for (collectives::Group* group : Groups()) {
    if (absl::Status s = group->Health(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void CompiledEngine::ReadResult(Training& training) {
  const double* values = training.seen_on_host.const_data_ptr<double>();
  StepResult& result = training.result;
  result.loss = values[kLossSum] / static_cast<double>(training.global_targets);
  result.gradient_norm = values[kStepScalars];
  result.votes = ToVotes(values);
  result.skipped = !std::isfinite(result.loss) || !std::isfinite(result.gradient_norm);
  result.loss_scale = values[kStepScalars + 1];
  training.update = ToUpdateState(values + kStepScalars + 2);
  training.halted = values[kStepScalars + 2 + kHalted] != 0;
}

// On a CPU the scalars and the norm are computed by now. On a GPU they may not be, so the update is decided on the
// device, and the host reads them when it awaits the step, or waits for them where it makes the update.
void CompiledEngine::Decide(StepWork& work) {
  const at::Tensor scale = update_.narrow(0, kLossScale, 1).clone();
  const at::Tensor norm = work.tensors.norm.to(at::kDouble).view({1}).div(scale);
  const at::Tensor numbers = at::cat({work.tensors.scalars, norm});
  work.decision = DecideUpdate(rules_, numbers, update_);
  if (work.inputs.has_value()) work.decision->now = work.inputs->now;
  // Forward has changed them in place; all passes of the step are over.
  if (kept_buffers_.defined()) {
    at::where_out(flat_buffers_, work.decision->skip.to(at::kBool), kept_buffers_, flat_buffers_);
  }
  if (gradient_scale_.defined()) gradient_scale_.copy_(update_.narrow(0, kLossScale, 1));
  const at::Tensor seen = at::cat({numbers, scale, update_});
  if (work.host == nullptr) {
    work.seen = seen;
    return;
  }
  Training& training = *work.host;
  if (DecidesOnDevice()) return CopyBack(seen, training);
  training.seen_on_host = seen.to(at::kCPU);
  ReadResult(training);
  ThrowIfBad(GroupsHealth());
}

void CompiledEngine::CopyBack(const at::Tensor& seen, Training& training) const {
  training.seen_on_host = at::empty(seen.sizes(), at::TensorOptions(at::kDouble).pinned_memory(device_.is_cuda()));
  training.seen_on_host.copy_(seen, /*non_blocking=*/true);
}

void CompiledEngine::Optimize(StepWork& work, const Op& op) {
  if (!work.decision.has_value()) Decide(work);
  FlatOptimizer& optimizer = *optimizers_.at(std::max(0, op.unit));
  if (DecidesOnDevice()) {
    optimizer.StepUnless(*work.decision, work.step, work.learning_rate);
    ++parameters_version_;
    return;
  }
  const Training& training = *work.host;
  const StepResult& result = training.result;
  if (result.skipped || training.halted) return;
  // torch.nn.utils.clip_grad_norm_
  const double clipped = std::min(1.0, rules_.clip_norm / (result.gradient_norm + 1e-6));
  if (storage_->offloads()) {
    storage_->BeginStep(op);
    for (const StatePart& part : optimizer.State()) host_.Expect(part.values);
  }
  optimizer.Step(work.step - training.update.skipped_steps(), work.learning_rate, clipped / result.loss_scale);
  ++parameters_version_;
  if (!storage_->offloads()) return;
  storage_->EndStep(op);
  for (const StatePart& part : optimizer.State()) host_.Evict(part.values);
}

void CompiledEngine::Renew() {
  ++parameters_version_;
  storage_->Renew();
}

absl::Status CompiledEngine::CheckIdle() const {
  if (in_flight_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("step ", step_ + 1, " was issued and not awaited"));
}

absl::Status CompiledEngine::CheckIssue(const Batch& batch, double learning_rate) const {
  if (in_flight() >= most_in_flight()) return CheckIdle();
  if (absl::Status s = CheckBatch(config_.inventory, batch); !s.ok()) return s;
  const uint64_t room = static_cast<uint64_t>(MicrobatchRows(batch)) * config_.schedule.microbatches;
  if (batch.samples > room) {
    return absl::InvalidArgumentError(absl::StrCat("a batch of ", batch.samples,
                                                   " samples, the schedule's microbatches hold ", room,
                                                   "; it was compiled for another batch.sequences"));
  }
  if (!std::isfinite(learning_rate) || learning_rate < 0) {
    return absl::InvalidArgumentError(absl::StrCat("a learning rate of ", learning_rate));
  }
  return absl::OkStatus();
}

absl::Status CompiledEngine::Issue(const Batch& batch, double learning_rate, const Votes& votes) {
  if (absl::Status s = CheckIssue(batch, learning_rate); !s.ok()) return s;
  const uint64_t step = step_ + in_flight_.size() + 1;
  in_flight_.push_back(std::make_unique<Training>());
  Training& training = *in_flight_.back();
  training.global_targets = TargetsOf(batch.global_samples);
  const absl::Status issued = Guarded([&] {
    at_.step = step;
    recorder_.Begin();
    training.work = WorkOf(batch, learning_rate, training);
    if (captures_ && training.work == recorded_ && recorded_->runs == 1 && recorded_->graph == nullptr) {
      training.result.note = Capture(*training.work);
      training.work = WorkOf(batch, learning_rate, training);  // what could not be captured is not to be used again
      at_.what = "";
    }
    StepWork& work = *training.work;
    WriteScalars(votes, work.tensors.scalars);
    if (work.inputs.has_value()) work.inputs->Write(batch, step, learning_rate);
    Train(work);
    // Not by a task, which would copy to the place of the step that was recorded.
    if (work.host == nullptr) {
      ThrowIfBad(queue_->Append("the step's result", [&] {
        CopyBack(work.seen, training);
        return absl::OkStatus();
      }));
    }
  });
  if (!issued.ok() && config_.progress != nullptr) config_.progress->EndStep();
  return issued;
}

absl::StatusOr<StepResult> CompiledEngine::Await() {
  if (in_flight_.empty()) return absl::FailedPreconditionError("no step was issued");
  StepResult result;
  bool halted = false;
  const absl::Status done = Guarded([&] {
    Training& training = *in_flight_.front();
    ThrowIfBad(queue_->Finish());
    ReadResult(training);
    training.result.waited_seconds = queue_->waited_seconds();
    if (exchanges_.has_value() && device_.is_cpu()) training.result.waited_seconds += exchanges_->TakeWaitedSeconds();
    for (std::optional<TensorExchanges>* exchanges : {&tensor_, &sequence_}) {
      if (!exchanges->has_value() || !device_.is_cpu()) continue;
      training.result.waited_seconds += (*exchanges)->TakeWaitedSeconds();
    }
    ThrowIfBad(GroupsHealth());
    result = training.result;
    halted = training.halted;
    awaited_update_ = training.update;
    in_flight_.pop_front();
  });
  if (config_.progress != nullptr) config_.progress->EndStep();
  if (!done.ok()) return done;
  if (halted) {
    DropInFlight();
    return NonFiniteError(absl::StrCat("rank ", config_.rank, ", step ", step_ + 1, ": ", Why(result)));
  }
  ++step_;
  return result;
}

// A step that may not be skipped.
std::string CompiledEngine::Why(const StepResult& result) const {
  std::string why = absl::StrCat("the loss is ", result.loss, " and the gradient's norm ", result.gradient_norm);
  if (rules_.most_skipped > 0) absl::StrAppend(&why, ", after ", rules_.most_skipped, " skipped steps in a row");
  if (gradient_scale_.defined()) {
    absl::StrAppend(&why, ", with the loss scale at its minimum of ", rules_.minimum);
  }
  return absl::StrCat(why,
                      "; the parameters were not updated. Try a lower optimizer.lr, a longer warm-up, or clip_norm");
}

void CompiledEngine::DropInFlight() {
  Guarded([&] {
    for (; !in_flight_.empty(); in_flight_.pop_front()) ThrowIfBad(queue_->Finish());
    SetUpdateState(awaited_update_);
  }).IgnoreError();  // the step before is what failed
}

at::Tensor CompiledEngine::ForwardOnly(const Batch& batch, int64_t first, int64_t rows) {
  Context context = MakeContext(batch, first, rows, Mode::kEvaluate);
  const at::Tensor sums =
      at::zeros({1 + config_.inventory.task().metrics_size()}, at::TensorOptions(at::kDouble).device(device_));
  context.loss_sum = sums[0];
  context.metric_sums = sums.narrow(0, 1, sums.size(0) - 1);
  InFlightMicrobatches microbatches({.schedule = &config_.evaluation,
                                     .inventory = &config_.inventory,
                                     .modules = &units_,
                                     .tensor = tensor_.has_value() ? &*tensor_ : nullptr,
                                     .sequence = sequence_.has_value() ? &*sequence_ : nullptr,
                                     .received = received_.has_value() ? &*received_ : nullptr,
                                     .groups = &config_.groups,
                                     .compute = ScalarTypeOf(config_.train.precision().compute())},
                                    {context});
  StepTasks tasks({.config = &config_,
                   .storage = &*storage_,
                   .microbatches = &microbatches,
                   .tensors = nullptr,
                   .update = nullptr});
  at_ = {.what = "evaluation"};
  Run(config_.evaluation, tasks, nullptr);
  ThrowIfBad(queue_->Finish());
  if (!CountsLoss()) sums.zero_();
  return sums;
}

absl::StatusOr<Evaluation> CompiledEngine::Evaluate(const Batch& batch) {
  if (absl::Status s = CheckIdle(); !s.ok()) return s;
  if (absl::Status s = CheckBatch(config_.inventory, batch); !s.ok()) return s;
  Evaluation evaluation;
  absl::Status status = Guarded([&] {
    const c10::AutoGradMode off(false);
    // At most a training microbatch at a time, so that validation stays within the planned memory; and equally often on
    // every rank, because each pass gathers parameters.
    const int64_t most_rows = strategies::MicrobatchRows(config_.train.batch(), config_.mesh.sample_ranks());
    const int64_t rows = std::clamp<int64_t>(MicrobatchRows(batch), 1, std::max<int64_t>(1, most_rows));
    const int64_t ranks = config_.mesh.sample_ranks();
    at_.what = "sharing running statistics";
    ShareBuffers();
    const int64_t samples = static_cast<int64_t>(batch.samples), all = static_cast<int64_t>(batch.global_samples),
                  most = std::max(samples, (all + ranks - 1) / ranks);
    at::Tensor sums;
    for (int64_t begin = 0; begin < most; begin += rows) {
      const int64_t first = std::min(begin, samples);
      const at::Tensor part = ForwardOnly(batch, first, std::min(rows, samples - first));
      sums = sums.defined() ? sums.add_(part) : part;
    }
    at_ = {.what = "evaluation"};
    if (config_.groups[kWorldGroup] != nullptr) ThrowIfBad(config_.groups[kWorldGroup]->AllReduce(sums)->Wait());
    const at::Tensor means = sums.div(static_cast<double>(TargetsOf(batch.global_samples))).to(at::kCPU);
    const double* values = means.const_data_ptr<double>();
    evaluation = {.loss = values[0], .metrics = {values + 1, values + means.numel()}};
    ThrowIfBad(GroupsHealth());
  });
  if (!status.ok()) return status;
  if (!std::isfinite(evaluation.loss)) {
    return NonFiniteError(absl::StrCat("rank ", config_.rank, ", after step ", step_, ", evaluation: the loss is ",
                                       evaluation.loss, "; the weights have diverged"));
  }
  return evaluation;
}

absl::StatusOr<at::Tensor> CompiledEngine::Predict(const at::Tensor& inputs, Cache* cache) {
  if (absl::Status s = CheckIdle(); !s.ok()) return s;
  if (config_.table.shards() > 1 || !config_.schedule.edges.empty() || tensor_.has_value()) {
    return absl::FailedPreconditionError("this rank holds only a part of the model, and a prediction needs all of it");
  }
  if (models::ContextRanks(config_.inventory) > 1) {
    return absl::FailedPreconditionError(
        "this rank computes only a part of each sequence, and a prediction needs all of it");
  }
  if (config_.schedule.slots > 0) {
    return absl::FailedPreconditionError(
        "the device keeps no parameters (offload), and a prediction needs all of them");
  }
  if (absl::Status s = CheckPrediction(inputs, cache); !s.ok()) return s;
  at::Tensor result;
  absl::Status status = Guarded([&] {
    at_.what = "prediction";
    const c10::AutoGradMode off(false);
    Context context;
    context.mode = cache == nullptr ? Mode::kEvaluate : Mode::kGenerate;
    context.samples = inputs.size(0);
    context.batch.Set(models::kInputs, ToDevice(inputs));
    if (cache != nullptr) {
      context.position = cache->position;
      cache->parameters_version = parameters_version_;
      cache->of_unit.resize(units_.size());
    }
    units::Saved none;
    Activations flow;
    for (size_t u = 0; u < units_.size(); ++u) {
      flow = units_[u]->Forward(context, flow, cache == nullptr ? none : cache->of_unit[u]);
    }
    if (cache != nullptr) cache->position += inputs.size(1);
    result = flow[0].to(at::kCPU, at::kFloat).contiguous();
  });
  if (!status.ok()) return status;
  const float* values = result.const_data_ptr<float>();
  if (!std::all_of(values, values + result.numel(), [](float x) { return std::isfinite(x); })) {
    return NonFiniteError("a prediction that is not finite: the weights have diverged or are damaged");
  }
  return result;
}

// With a cache, a sequence may be of any length up to the task's.
absl::Status CompiledEngine::CheckPrediction(const at::Tensor& inputs, const Cache* cache) const {
  const auto& tensors = config_.inventory.task().tensors();
  BatchTensor described = models::Find(config_.inventory.task(), models::kInputs);
  const bool reads_others = std::any_of(tensors.begin(), tensors.end(), [](const BatchTensor& tensor) {
    return tensor.input() && tensor.name() != models::kInputs;
  });
  if (reads_others) {
    return absl::FailedPreconditionError("the model reads tensors of its own, which a prediction does not have");
  }
  const uint64_t samples = inputs.dim() > 0 ? static_cast<uint64_t>(inputs.size(0)) : 0;
  if (cache != nullptr && inputs.dim() >= 2) {
    const int64_t most = static_cast<int64_t>(described.shape(0)) - cache->position;
    if (inputs.size(1) < 1 || inputs.size(1) > most) {
      return absl::InvalidArgumentError(
          absl::StrCat("1 to ", most, " ", described.name(), " at ", cache->position, ", got ", inputs.size(1)));
    }
    if (cache->position > 0 && cache->parameters_version != parameters_version_) {
      return absl::FailedPreconditionError("the parameters changed since the cache's first call");
    }
    described.set_shape(0, static_cast<uint64_t>(inputs.size(1)));
  }
  return CheckBatchTensor(described, inputs, samples);
}

absl::Status CompiledEngine::Pull() {
  if (absl::Status s = BeginPull(); !s.ok()) return s;
  return AwaitPull();
}

// The steps so far have ended, and no group had failed then: what is copied has no result of an aborted collective.
// The running statistics that a forward pass changes are few, and are copied in the order of computing.
absl::Status CompiledEngine::BeginPull() {
  if (absl::Status s = CheckIdle(); !s.ok()) return s;
  if (absl::Status s = AwaitPull(); !s.ok()) return s;
  return Guarded([&] {
    at_.what = "copying the state to the host";
    ThrowIfBad(GroupsHealth());
    ThrowIfBad(queue_->Copy([&] { state_->BuffersToHost(); }, [&] { state_->OwnedToHost(); },
                            [&] { return state_->OwnedToHostAccesses(); }));
  });
}

absl::Status CompiledEngine::AwaitPull() const {
  for (; true; absl::SleepFor(kPullPoll)) {
    const absl::StatusOr<bool> copied = queue_->Copied();
    if (copied.ok() && *copied) return absl::OkStatus();
    if (copied.ok()) continue;
    return absl::Status(
        copied.status().code(),
        absl::StrCat("rank ", config_.rank, ", copying the state to the host: ", copied.status().message()));
  }
}

absl::Status CompiledEngine::Push() {
  if (absl::Status s = CheckIdle(); !s.ok()) return s;
  if (absl::Status s = AwaitPull(); !s.ok()) return s;
  return Guarded([&] {
    at_.what = "copying changed parameters to the device";
    state_->FromHost();
    Renew();
  });
}

absl::Status CompiledEngine::UseAttention(const std::string& name) {
  if (device_.is_cuda()) {
    if (absl::Status s = units::UseAttention(name); !s.ok()) return s;
  }
  attention_ = name;
  recorded_.reset();
  return absl::OkStatus();
}

void CompiledEngine::ForgetTrials() const {
#ifdef MUSTER_CUDA
  if (!device_.is_cuda()) return;
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::cuda::CUDACachingAllocator::resetPeakStats(0);
#endif
}

uint64_t CompiledEngine::peak_memory_bytes() const {
#ifdef MUSTER_CUDA
  if (device_.is_cuda()) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    return static_cast<uint64_t>(stats.allocated_bytes[0].peak);
  }
#endif
  return CpuMemoryUse().peak_bytes + (host_.is_file() ? 0 : host_.bytes());
}

uint64_t CompiledEngine::fixed_memory_bytes() const {
#ifdef MUSTER_CUDA
  size_t free = 0, total = 0;
  if (device_.is_cuda() && cudaMemGetInfo(&free, &total) == cudaSuccess) {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(0);
    const size_t ours = static_cast<size_t>(stats.reserved_bytes[0].current);
    return total - free > ours ? total - free - ours : 0;
  }
#endif
  return 0;
}

}  // namespace

absl::Status NonFiniteError(absl::string_view message) {
  absl::Status status = absl::OutOfRangeError(message);
  status.SetPayload(kNonFinite, {});
  return status;
}

bool IsNonFinite(const absl::Status& status) { return status.GetPayload(kNonFinite).has_value(); }

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const Config& config) {
  auto engine = std::make_unique<CompiledEngine>(config);
  if (absl::Status s = engine->Prepare(); !s.ok()) return s;
  return engine;
}

}  // namespace muster::engine
