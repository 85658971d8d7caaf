#include "worker/trainer/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "checkpoint/checkpoint.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/utf8.h"
#include "models/inventory.h"
#include "strategies/compile.h"
#include "worker/engine/learning_rate.h"
#include "worker/rundir/outbox.h"
#include "worker/trainer/checkpointer.h"
#include "worker/trainer/collective_bench.h"
#include "worker/trainer/local_steps.h"
#include "worker/trainer/pending_votes.h"
#include "worker/trainer/pulse.h"
#include "worker/trainer/setup.h"
#include "worker/trainer/tracer.h"

namespace muster::trainer {
namespace {

constexpr absl::Duration kLogEvery = absl::Seconds(10);
constexpr size_t kMaxFailureBytes = 4096;
constexpr uint64_t kValidatedAtOnce = 1024;  // samples, so that a test set need not fit into memory

using engine::Votes;

bool WantsStop(const Votes& votes) { return votes.stop + votes.stop_without_checkpoint > 0; }

class Loop {
 public:
  Loop(const Assignment& assignment, Rank rank, rundir::OutboxWriter& outbox, Pulse& pulse, Link& link)
      : assignment_(assignment),
        train_(assignment.spec().train()),
        rank_(std::move(rank)),
        outbox_(outbox),
        pulse_(pulse),
        link_(link),
        checkpointer_(assignment_, rank_),
        local_steps_(MakeLocalSteps()),
        votes_(static_cast<uint64_t>(rank_.engine->most_in_flight()) - 1) {}

  absl::StatusOr<Ended> Run(const std::function<bool()>& terminated);

 private:
  uint64_t step() const { return rank_.engine->step(); }
  uint64_t steps() const { return train_.steps(); }
  bool alone() const { return assignment_.world() <= 1; }
  // Rank 0 reports metrics and checkpoints for all ranks.
  bool speaks() const { return assignment_.key().rank() == 0; }
  strategies::Share ShareOf(uint64_t sequences) const {
    return strategies::ShareOf(sequences, rank_.program.layout.mesh, assignment_.key().rank());
  }
  // Of the replicas of a run with local steps; else 1 and 0.
  uint64_t replicas() const { return rank_.outer == nullptr ? 1 : train_.sync().replicas(); }
  uint32_t replica() const { return rank_.outer == nullptr ? 0 : train_.sync().replica(); }
  bool SyncsAfter(uint64_t step) const { return local_steps_ != nullptr && local_steps_->DueAfter(step); }
  static bool Due(uint64_t step, uint64_t every) { return every > 0 && step % every == 0; }
  bool ValidatesAfter(uint64_t step) const {
    return rank_.validation != nullptr && (step == steps() || Due(step, train_.validation().every_steps()));
  }
  bool CheckpointsAfter(uint64_t step) const {
    return checkpointer_.writes() && Due(step, train_.checkpoint().every_steps());
  }

  // A step that the engine was given and whose result is not yet read.
  struct Issued {
    Now begin;
    double learning_rate = 0;
  };
  std::unique_ptr<LocalSteps> MakeLocalSteps();
  absl::Status Exchange();
  absl::Status Issue(const Votes& own);
  absl::Status Await();
  // How many steps may stay in flight: none before something that needs the model after this step.
  size_t MayStayInFlight() const;
  absl::StatusOr<Votes> TakeStep(const Votes& own);
  absl::Status Report(const engine::StepResult& result, const Issued& issued);
  absl::StatusOr<engine::Evaluation> Validate();
  bool WantsCheckpoint(const Link::Received& received);
  absl::Status BeginCheckpoint();
  absl::Status LastCheckpoint();
  absl::Status ReportCheckpoints();
  absl::StatusOr<Ended> Stop(const Votes& votes);
  absl::Status Append(Record record, bool durable);
  void Retain();
  void LogProgress(const MetricPoint& point);
  void LogSkipped(const engine::StepResult& result, uint64_t skipped) const;

  const Assignment& assignment_;
  const Train& train_;
  Rank rank_;
  rundir::OutboxWriter& outbox_;
  Pulse& pulse_;
  Link& link_;
  Checkpointer checkpointer_;
  const std::unique_ptr<LocalSteps> local_steps_;  // null: the job has no replicas
  const RealClock clock_;
  std::deque<Issued> in_flight_;
  PendingVotes votes_;
  bool memory_logged_ = false;
  bool disk_full_ = false;                // metrics are dropped
  SteadyTime step_ended_;                 // the newest one that is done
  std::optional<uint64_t> checkpointed_;  // step of the newest checkpoint, begun or resumed from
  SteadyTime checkpoint_begun_;           // that or, before the first one, the training
  uint64_t appended_ = 0;                 // sequence of the newest record
  // Checkpoints of this generation, and the sequence numbers of the records that report them.
  std::map<std::string, uint64_t> checkpoint_records_;
  uint64_t last_checkpoint_request_ = 0;
  uint64_t assignments_seen_ = 0;
  SteadyTime logged_;
  Tracer tracer_;
};

absl::Status Loop::Append(Record record, bool durable) {
  const bool history = record.has_metrics() || record.has_trace();
  absl::StatusOr<uint64_t> sequence = outbox_.Append(std::move(record), durable);
  if (history && absl::IsResourceExhausted(sequence.status())) {
    if (!std::exchange(disk_full_, true)) LogWarn("metrics are dropped", {{"error", sequence.status()}});
    return absl::OkStatus();
  }
  if (!sequence.ok()) return sequence.status();
  if (history) disk_full_ = false;
  appended_ = *sequence;
  link_.Ring(appended_, step());
  return absl::OkStatus();
}

absl::StatusOr<Ended> Loop::Run(const std::function<bool()>& terminated) {
  checkpointed_ = rank_.resumed_step;
  logged_ = checkpoint_begun_ = clock_.Read().steady;
  Record running;
  running.mutable_running()->set_resumed_step(step());
  running.mutable_running()->set_schedule_digest(rank_.program.rank.digest);
  running.mutable_running()->set_flops_per_second(rank_.flops_per_second);
  *running.mutable_running()->mutable_links() = {rank_.links.begin(), rank_.links.end()};
  const absl::Status recorded = Append(std::move(running), /*durable=*/true);
  if (absl::IsResourceExhausted(recorded)) {  // later records show that the rank runs
    LogWarn("the start of the training is not recorded", {{"error", recorded}});
  } else if (!recorded.ok()) {
    return recorded;
  }
  LogInfo("training", {{"from_step", step()},
                       {"steps", steps()},
                       {"sequences_per_step", train_.batch().sequences()},
                       {"samples_per_epoch", rank_.samples->samples_per_epoch()}});

  if (local_steps_ != nullptr) {
    if (absl::Status status = local_steps_->Start(); !status.ok()) return status;
  }
  while (step() < steps()) {
    const Link::Received received = link_.Newest();
    Votes own;
    if (received.stop.has_value() || terminated()) {
      (!received.stop.has_value() || received.stop->checkpoint_first() ? own.stop : own.stop_without_checkpoint) = 1;
    }
    if (alone() && WantsStop(own)) {
      while (!in_flight_.empty()) {
        if (absl::Status awaited = Await(); !awaited.ok()) return awaited;
      }
      return Stop(own);
    }
    if (absl::Status status = ReportCheckpoints(); !status.ok()) return status;
    if (WantsCheckpoint(received)) own.checkpoint = 1;
    if (received.assignments != assignments_seen_) {
      assignments_seen_ = received.assignments;
      Retain();
      tracer_.Request(received.trace);
    }
    const absl::StatusOr<Votes> votes = TakeStep(own);
    if (!votes.ok()) return votes.status();
    if (WantsStop(*votes) && step() < steps()) return Stop(*votes);
  }
  if (absl::Status status = LastCheckpoint(); !status.ok()) return status;
  Record finished;
  finished.mutable_finished()->set_step(step());
  if (absl::Status status = Append(std::move(finished), /*durable=*/true); !status.ok()) return status;
  LogInfo("finished", {{"step", step()}});
  return Ended::kCompleted;
}

size_t Loop::MayStayInFlight() const {
  const uint64_t newest = step() + in_flight_.size();
  if (newest == steps() || ValidatesAfter(newest) || CheckpointsAfter(newest) || SyncsAfter(newest) ||
      tracer_.requested() || votes_.DueAfter(newest)) {
    return 0;
  }
  return static_cast<size_t>(rank_.engine->most_in_flight()) - 1;
}

std::unique_ptr<LocalSteps> Loop::MakeLocalSteps() {
  if (rank_.outer == nullptr) return nullptr;
  const strategies::Layout& layout = rank_.program.layout;
  const RankRole& own = layout.roles[assignment_.key().rank()];
  const auto first = std::find_if(layout.roles.begin(), layout.roles.end(), [&](const RankRole& role) {
    return role.replica() == 0 && role.shard() == own.shard() && role.stage() == own.stage() &&
           role.tensor() == own.tensor();
  });
  const Mesh& mesh = layout.mesh;
  LocalSteps::Options options{.key = assignment_.key(),
                              .sync = train_.sync(),
                              .host = assignment_.host().empty() ? "127.0.0.1" : assignment_.host(),
                              .layout = absl::StrCat(layout.table_sha256, "/", mesh.pipeline, "/", mesh.replica, "/",
                                                     mesh.shard, "/", mesh.tensor),
                              .source_rank = first->rank(),
                              .steps = steps(),
                              .device = assignment_.device(),
                              .world = rank_.ranks.groups[kWorldGroup]};
  return std::make_unique<LocalSteps>(
      std::move(options), rank_.outer.get(),
      [this](const SyncRequest& request, const Begun& begun) { return link_.Sync(request, begun); },
      [this] { pulse_.Enter(rundir::kSyncing); });
}

absl::Status Loop::Exchange() {
  pulse_.Enter(rundir::kSyncing);
  // It may still be read, where a checkpoint does not begin with a copy.
  if (checkpointer_.writes() && !rank_.engine->state_is_live()) {
    if (absl::Status status = checkpointer_.Wait(); !status.ok()) return status;
  }
  return local_steps_->AfterStep(step());
}

absl::Status Loop::Issue(const Votes& own) {
  pulse_.Enter(rundir::kReading);
  if (in_flight_.empty()) tracer_.BeginStep(*rank_.engine);
  const Now begin = clock_.Read();
  const auto reading = std::chrono::steady_clock::now();
  const uint64_t sequences = train_.batch().sequences(), ahead = in_flight_.size();
  const strategies::Share share = ShareOf(sequences);
  const uint64_t consumed = rank_.samples_consumed + ahead * sequences * replicas();
  absl::StatusOr<engine::Batch> batch =
      rank_.samples->Read(FirstSampleOf(consumed, sequences, replica()) + share.first, share.sequences);
  if (!batch.ok()) return batch.status();
  batch->global_samples = sequences;
  batch->first_sample = FirstSampleOf(0, sequences, replica()) + share.first;
  tracer_.Host("data", reading);
  const double learning_rate = engine::LearningRate(train_.optimizer(), step() + ahead, steps());
  if (absl::Status issued = rank_.engine->Issue(*batch, learning_rate, own); !issued.ok()) return issued;
  in_flight_.push_back({begin, learning_rate});
  return absl::OkStatus();
}

absl::Status Loop::Await() {
  const absl::StatusOr<engine::StepResult> result = rank_.engine->Await();
  if (!result.ok()) return result.status();
  const Issued issued = in_flight_.front();
  in_flight_.pop_front();
  if (!result->note.empty()) LogInfo("CUDA graph", {{"step", step()}, {"result", result->note}});
  rank_.samples_consumed += train_.batch().sequences() * replicas();
  pulse_.FinishStep(step());
  if (SyncsAfter(step())) {
    const auto exchanging = std::chrono::steady_clock::now();
    if (absl::Status status = Exchange(); !status.ok()) return status;
    tracer_.Host("exchange", exchanging);
  }
  const auto reporting = std::chrono::steady_clock::now();
  if (absl::Status status = Report(*result, issued); !status.ok()) return status;
  tracer_.Host("report", reporting);
  votes_.Add(step(), result->votes);
  return absl::OkStatus();
}

// Issues one step on all ranks and awaits what must be done before the next one; returns the votes that are due.
absl::StatusOr<Votes> Loop::TakeStep(const Votes& own) {
  if (absl::Status issued = Issue(own); !issued.ok()) return issued;
  while (in_flight_.size() > MayStayInFlight()) {
    if (absl::Status awaited = Await(); !awaited.ok()) return awaited;
  }
  if (!in_flight_.empty()) return Votes();
  const Votes votes = votes_.DueAfter(step()) ? votes_.Take() : Votes();
  if (checkpointer_.writes() && (votes.checkpoint > 0 || CheckpointsAfter(step()))) {
    const auto writing = std::chrono::steady_clock::now();
    if (absl::Status status = BeginCheckpoint(); !status.ok()) return status;
    tracer_.Host("checkpoint", writing);
  }
  if (std::optional<StepTrace> trace = tracer_.EndStep(*rank_.engine)) {
    Record record;
    *record.mutable_trace() = *std::move(trace);
    if (absl::Status status = Append(std::move(record), /*durable=*/false); !status.ok()) return status;
  }
  return votes;
}

// Reports the step; first runs validation on all ranks if it is due. A step's time begins with the end of the one
// before it if that is later than its issue.
absl::Status Loop::Report(const engine::StepResult& result, const Issued& issued) {
  const Now end = clock_.Read();
  const double seconds = absl::ToDoubleSeconds(end.steady - std::max(issued.begin.steady, step_ended_));
  step_ended_ = end.steady;
  Record record;
  MetricPoint& point = *record.mutable_metrics();
  point.set_step(step());
  *point.mutable_time() = ToProto(end.wall);
  if (std::isfinite(result.loss)) point.set_loss(result.loss);
  if (std::isfinite(result.gradient_norm)) point.set_gradient_norm(result.gradient_norm);
  const uint64_t skipped = rank_.engine->update_state().skipped_steps();
  if (skipped > 0) point.set_skipped_steps(skipped);
  if (strategies::ScalesLoss(train_)) point.set_loss_scale(result.loss_scale);
  if (result.skipped) LogSkipped(result, skipped);
  point.set_learning_rate(issued.learning_rate);
  point.set_step_seconds(seconds);
  if (seconds > 0) {
    const Inventory& inventory = rank_.program.inventory;
    point.set_samples_per_second(train_.batch().sequences() / seconds);
    // Of adapters the gradients of frozen weights are not computed.
    if (!train_.has_lora()) {
      point.set_model_flops_per_second(point.samples_per_second() * models::TrainingFlops(inventory) *
                                       models::ContextRanks(inventory));
    }
    if (inventory.task().name() == models::kLanguageModel) {
      point.set_tokens_per_second(point.samples_per_second() *
                                  static_cast<double>(models::WholeTargetsPerSample(inventory)));
    }
  }
  point.set_peak_memory_bytes(rank_.engine->peak_memory_bytes());
  const uint64_t fixed = rank_.engine->fixed_memory_bytes(), host = rank_.engine->host_memory_bytes();
  if (!std::exchange(memory_logged_, true) && fixed + host > 0) {
    LogInfo("device memory",
            {{"tensors_bytes", rank_.engine->peak_memory_bytes()}, {"fixed_bytes", fixed}, {"offloaded_bytes", host}});
  }
  if (!alone() && assignment_.device() != DEVICE_CUDA) point.set_communication_seconds(result.waited_seconds);
  if (ValidatesAfter(step())) {
    absl::StatusOr<engine::Evaluation> evaluation = Validate();
    if (!evaluation.ok()) return evaluation.status();
    point.set_validation_loss(evaluation->loss);
    std::vector<LogField> fields = {{"step", step()}, {"validation_loss", evaluation->loss}};
    for (NamedMetric& metric : rank_.task->Metrics(rank_.program.inventory, *evaluation)) {
      *point.add_validation() = std::move(metric);
    }
    for (const NamedMetric& metric : point.validation()) fields.emplace_back(metric.name().c_str(), metric.value());
    LogInfo("validated", fields);
  }
  LogProgress(point);
  return speaks() ? Append(std::move(record), /*durable=*/false) : absl::OkStatus();
}

// Uses the first samples of the file, so that losses are comparable across steps, jobs and world sizes.
absl::StatusOr<engine::Evaluation> Loop::Validate() {
  pulse_.Enter(rundir::kValidating);
  const uint64_t sequences = std::min<uint64_t>(train_.validation().sequences(), rank_.validation->samples_per_epoch());
  engine::Evaluation mean;
  for (uint64_t first = 0; first < sequences; first += kValidatedAtOnce) {
    const uint64_t part = std::min(kValidatedAtOnce, sequences - first);
    const strategies::Share share = ShareOf(part);
    absl::StatusOr<engine::Batch> batch = rank_.validation->Read(first + share.first, share.sequences);
    if (!batch.ok()) return batch.status();
    batch->global_samples = part;
    const absl::StatusOr<engine::Evaluation> found = rank_.engine->Evaluate(*batch);
    if (!found.ok()) return found.status();
    mean.Add(*found, part);
  }
  mean.Divide(sequences);
  return mean;
}

// Rank 0 decides, from its clock and its commands; its vote carries the decision to the other ranks.
bool Loop::WantsCheckpoint(const Link::Received& received) {
  if (!speaks() || !checkpointer_.writes()) return false;
  const bool requested = received.checkpoint_request != 0 && received.checkpoint_request != last_checkpoint_request_;
  if (received.checkpoint_request != 0) last_checkpoint_request_ = received.checkpoint_request;
  const double every = train_.checkpoint().every_seconds();
  // While one is still being written, another would only make training wait.
  const bool due =
      every > 0 && !checkpointer_.under_way() && clock_.Read().steady - checkpoint_begun_ >= absl::Seconds(every);
  return requested || due;
}

absl::Status Loop::BeginCheckpoint() {
  pulse_.Enter(rundir::kCheckpointing);
  checkpoint_begun_ = clock_.Read().steady;
  if (absl::Status status = checkpointer_.Begin(step(), rank_.samples_consumed); !status.ok()) return status;
  checkpointed_ = step();
  return ReportCheckpoints();
}

// Returns once the current state and any checkpoint in progress are on disk.
absl::Status Loop::LastCheckpoint() {
  if (!checkpointer_.writes()) return absl::OkStatus();
  pulse_.Enter(rundir::kCheckpointing);
  absl::Status status =
      checkpointed_ == step() ? checkpointer_.Wait() : checkpointer_.Write(step(), rank_.samples_consumed);
  if (!status.ok()) return status;
  checkpointed_ = step();
  return ReportCheckpoints();
}

absl::Status Loop::ReportCheckpoints() {
  while (true) {
    const absl::StatusOr<std::optional<Checkpointer::Done>> taken = checkpointer_.Take();
    if (!taken.ok()) return taken.status();
    if (!taken->has_value()) return absl::OkStatus();
    const Checkpointer::Done& done = **taken;
    Record record;
    CheckpointWritten& report = *record.mutable_checkpoint();
    report.set_step(done.written.name.step);
    report.set_directory(done.written.name.Directory());
    report.set_samples_consumed(done.samples_consumed);
    report.set_bytes(done.written.bytes);
    report.set_stall_seconds(absl::ToDoubleSeconds(done.stalled));
    report.set_write_seconds(absl::ToDoubleSeconds(done.took));
    *report.mutable_time() = ToProto(clock_.Read().wall);
    if (absl::Status status = Append(std::move(record), /*durable=*/true); !status.ok()) return status;
    LogInfo("checkpoint written", {{"step", done.written.name.step},
                                   {"checkpoint", done.written.name.Directory()},
                                   {"bytes", done.written.bytes},
                                   {"took", absl::Trunc(done.took, absl::Milliseconds(1))},
                                   {"training_waited", absl::Trunc(done.stalled, absl::Microseconds(1))}});
    checkpoint_records_[done.written.name.Directory()] = appended_;
    Retain();
  }
}

// A single vote for a stop without a checkpoint outweighs any number of votes for a stop with one.
absl::StatusOr<Ended> Loop::Stop(const Votes& votes) {
  if (votes.stop_without_checkpoint == 0 && step() > 0) {
    if (absl::Status status = LastCheckpoint(); !status.ok()) return status;
  }
  LogInfo("stopped on request", {{"step", step()}, {"checkpoint_saved", checkpointed_ == step()}});
  return Ended::kStopped;
}

// A failed removal only costs disk space: it is logged, and retried after the next checkpoint.
void Loop::Retain() {
  if (!speaks() || !checkpointer_.writes()) return;
  const Link::Received received = link_.Newest();
  std::set<std::string> published, pending;
  for (const PublishedCheckpoint& checkpoint : received.published) published.insert(checkpoint.directory());
  for (const auto& [name, sequence] : checkpoint_records_) {
    const bool undelivered = sequence > received.undelivered_after && sequence <= received.undelivered_until;
    if (!undelivered) pending.insert(name);
  }
  const auto removed = checkpoint::Retain(train_.checkpoint().path(), HolderOf(assignment_),
                                          assignment_.key().generation(), published, pending);
  if (!removed.ok()) {
    LogWarn("cannot remove old checkpoints; retrying after the next one", {{"error", removed.status()}});
    return;
  }
  for (const std::string& name : *removed) {
    checkpoint_records_.erase(name);
    LogInfo("old checkpoint removed", {{"checkpoint", name}});
  }
}

// An overflow that only lowers the loss scale is ordinary.
void Loop::LogSkipped(const engine::StepResult& result, uint64_t skipped) const {
  std::vector<LogField> fields = {
      {"step", step()}, {"loss", result.loss}, {"gradient_norm", result.gradient_norm}, {"skipped_steps", skipped}};
  if (!strategies::ScalesLoss(train_)) {
    LogWarn("the step is not finite: the parameters were not updated", fields);
    return;
  }
  fields.emplace_back("loss_scale", result.loss_scale);
  fields.emplace_back("next_loss_scale", rank_.engine->update_state().loss_scale());
  LogInfo("the step's gradients overflowed: the parameters were not updated", fields);
}

void Loop::LogProgress(const MetricPoint& point) {
  const SteadyTime now = clock_.Read().steady;
  if (now - logged_ < kLogEvery) return;
  logged_ = now;
  const double left = static_cast<double>(steps() - step()) * point.step_seconds();
  LogInfo("progress",
          {{"step", step()},
           {"steps", steps()},
           {"loss", point.loss()},
           {"gradient_norm", point.gradient_norm()},
           {"learning_rate", point.learning_rate()},
           {point.has_tokens_per_second() ? "tokens_per_second" : "samples_per_second",
            std::round(point.has_tokens_per_second() ? point.tokens_per_second() : point.samples_per_second())},
           {"left", absl::Seconds(std::round(left))}});
}

// Whether an error before the first step may be the node's: it lacks a file, a permission, memory or a device, or has
// another build.
bool IsRefusalOfNode(const absl::Status& status) {
  return absl::IsNotFound(status) || absl::IsPermissionDenied(status) || absl::IsFailedPrecondition(status) ||
         absl::IsResourceExhausted(status) || absl::IsDataLoss(status);
}

// Whether a restart on this node cannot help.
bool IsRefusal(const absl::Status& status) {
  return IsRefusalOfNode(status) || absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ||
         absl::IsOutOfRange(status);
}

// As LibTorch reports whatever the driver returned.
bool IsDeviceError(const absl::Status& status) { return absl::StrContains(status.message(), "CUDA error"); }

// As collectives report a rank that has ended or does not answer.
bool IsOfOtherRank(const absl::Status& status) { return absl::IsUnavailable(status) && !IsDeviceError(status); }

}  // namespace

absl::StatusOr<Ended> TrainRank(const Assignment& assignment, const std::string& rank_dir, Link& link,
                                collectives::KeyValue& rendezvous, const std::function<bool()>& terminated,
                                const SetUpOptions& options) {
  absl::StatusOr<std::unique_ptr<rundir::OutboxWriter>> outbox = rundir::OutboxWriter::Open(rank_dir);
  if (!outbox.ok()) return outbox.status();
  absl::StatusOr<std::unique_ptr<Pulse>> pulse = Pulse::Start(rank_dir, CollectiveDeadline(assignment));
  if (!pulse.ok()) return pulse.status();
  const auto failed = [&](const absl::Status& status, bool refused) {
    Record record;
    // A message may quote what a file holds.
    std::string message(status.message());
    ShortenUtf8(kMaxFailureBytes, message);
    record.mutable_failed()->set_message(std::move(message));
    record.mutable_failed()->set_refused(refused);
    record.mutable_failed()->set_of_node(IsDeviceError(status) || (refused && IsRefusalOfNode(status)));
    record.mutable_failed()->set_of_other_rank(IsOfOtherRank(status));
    // On a full disk this may fail too; the exit code and stderr still carry the error.
    if (const auto appended = (*outbox)->Append(std::move(record), /*durable=*/false); appended.ok())
      link.Ring(*appended, 0);
    return status;
  };
  // LibTorch throws, also where no Status is expected: an error that ends the process would leave no record.
  const auto guarded = [](const auto& body) -> decltype(body()) {
    try {
      return body();
    } catch (const std::exception& error) {
      return absl::InternalError(error.what());
    }
  };
  // Whether a request to stop is the cause. It is not that of a refusal: where other ranks end because of one, they may
  // be stopped for it before the rank that refuses has ended.
  const auto stopped_by = [&](const absl::Status& status) {
    return !IsRefusal(status) && (link.Newest().stop.has_value() || terminated());
  };
  if (assignment.spec().train().has_bench()) {
    const absl::StatusOr<Ended> measured =
        guarded([&] { return RunCollectiveBench(assignment, rendezvous, **outbox, **pulse, link, terminated); });
    if (measured.ok()) return measured;
    if (stopped_by(measured.status())) return Ended::kStopped;
    return failed(measured.status(), IsRefusal(measured.status()));
  }
  absl::StatusOr<Rank> rank = guarded([&] { return SetUp(assignment, rendezvous, pulse->get(), options); });
  if (!rank.ok() && stopped_by(rank.status())) {
    LogInfo("stopped on request before the first step", {{"error", rank.status()}});
    return Ended::kStopped;
  }
  if (!rank.ok()) return failed(rank.status(), IsRefusal(rank.status()));
  absl::StatusOr<Ended> ended = guarded([&] {
    Loop loop(assignment, *std::move(rank), **outbox, **pulse, link);
    return loop.Run(terminated);
  });
  return ended.ok() ? ended : failed(ended.status(), /*refused=*/false);
}

}  // namespace muster::trainer
