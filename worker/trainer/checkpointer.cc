#include "worker/trainer/checkpointer.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"
#include "common/log/log.h"
#include "worker/trainer/agree_on_status.h"
#include "worker/trainer/weights.h"

namespace muster::trainer {
namespace {

using checkpoint::StepName;

// Polling intervals while rank 0 waits for the other ranks' shards.
constexpr absl::Duration kFirstLook = absl::Milliseconds(1), kLooks = absl::Milliseconds(50);

absl::Status Explain(const StepName& name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("the checkpoint of step ", name.step,
                                                  " failed (earlier checkpoints are intact): ", status.message()));
}

Manifest MakeManifest(const Assignment& assignment, const Rank& rank, uint64_t step, uint64_t samples_consumed) {
  Manifest manifest;
  manifest.set_job(assignment.key().job());
  manifest.set_generation(assignment.key().generation());
  manifest.set_step(step);
  manifest.set_samples_consumed(samples_consumed);
  *manifest.mutable_table() = rank.program.layout.table;
  *manifest.mutable_spec() = assignment.spec();
  *manifest.mutable_inventory() = rank.program.inventory;
  if (rank.tokenizer.has_value()) *manifest.mutable_tokenizer() = *rank.tokenizer;
  manifest.set_attention(rank.engine->attention());
  *manifest.mutable_update() = rank.engine->update_state();
  const Mesh& mesh = rank.program.layout.mesh;
  for (NamedState& state : StatesOfReplicas(assignment.spec().train(), mesh)) *manifest.add_states() = std::move(state);
  if (!manifest.states().empty()) manifest.set_replicas(mesh.replica);
  if (rank.outer != nullptr) {
    for (const uint64_t exchange : rank.outer->exchanges()) manifest.add_exchanges(exchange);
  }
  return manifest;
}

}  // namespace

// One checkpoint and the thread that writes this rank's shard of it. The destructor cancels an unfinished write.
class Checkpointer::Writing {
 public:
  // `engine`: `runs` are there once its AwaitPull has returned. It outlives this.
  Writing(const engine::Engine& engine, std::string path, uint32_t shard, std::vector<checkpoint::TensorRun> runs,
          std::optional<Manifest> manifest, checkpoint::Holder holder, const StepName& name, uint64_t samples_consumed,
          SteadyTime since)
      : engine_(engine),
        path_(std::move(path)),
        shard_(shard),
        runs_(std::move(runs)),
        manifest_(std::move(manifest)),
        holder_(std::move(holder)),
        name_(name),
        since_(since),
        thread_([this] { Run(); }) {
    result_.samples_consumed = samples_consumed;
  }
  ~Writing() {
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
    }
    thread_.join();
  }

  void Stalled(absl::Duration time) { result_.stalled += time; }

  absl::Status AwaitShard() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&shard_done_));
    return status_;
  }
  // REQUIRES: rank 0; the same holds for Result.
  absl::Status AwaitName() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));
    return status_;
  }
  bool done() {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  absl::Status status() {
    absl::MutexLock lock(&mutex_);
    return status_;
  }
  Done Result() {
    absl::MutexLock lock(&mutex_);
    Done result = result_;
    result.written = written_;
    result.took = took_;
    return result;
  }

 private:
  void Run() {
    absl::Status shard_status = engine_.AwaitPull();
    if (shard_status.ok()) shard_status = checkpoint::WriteShard(path_, name_, shard_, runs_).status();
    {
      absl::MutexLock lock(&mutex_);
      status_ = Explain(name_, shard_status);
      shard_done_ = true;
      done_ = !shard_status.ok() || !manifest_.has_value();
    }
    if (!manifest_.has_value()) return;
    const absl::Status all = shard_status.ok() ? AwaitShards() : shard_status;
    absl::StatusOr<checkpoint::Written> written =
        all.ok() ? checkpoint::Finish(path_, *std::move(manifest_), holder_.store_id)
                 : absl::StatusOr<checkpoint::Written>(all);
    if (!written.ok()) checkpoint::Abandon(path_, holder_, name_);
    absl::MutexLock lock(&mutex_);
    if (written.ok()) written_ = *written;
    status_ = Explain(name_, written.status());
    took_ = RealClock().Read().steady - since_;
    done_ = true;
  }

  absl::Status AwaitShards() {
    absl::Duration pause = kFirstLook;
    for (uint32_t shard = 0; shard < checkpoint::Files(*manifest_);) {
      const absl::StatusOr<bool> written = checkpoint::ShardIsWritten(path_, name_, shard);
      if (!written.ok()) return written.status();
      if (*written) {
        ++shard;
        continue;
      }
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), pause)) {
        return absl::CancelledError("this rank is ending before the other ranks wrote their shards");
      }
      pause = std::min(2 * pause, kLooks);
    }
    return absl::OkStatus();
  }

  const engine::Engine& engine_;
  const std::string path_;
  const uint32_t shard_;
  const std::vector<checkpoint::TensorRun> runs_;
  std::optional<Manifest> manifest_;  // on rank 0
  const checkpoint::Holder holder_;
  const StepName name_;
  const SteadyTime since_;
  Done result_;  // owner's thread only

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool shard_done_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  checkpoint::Written written_ ABSL_GUARDED_BY(mutex_);
  absl::Duration took_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

Checkpointer::Checkpointer(const Assignment& assignment, Rank& rank)
    : assignment_(assignment),
      rank_(rank),
      every_replica_(!StatesOfReplicas(assignment.spec().train(), rank.program.layout.mesh).empty()) {
  const Checkpoint& options = assignment.spec().train().checkpoint();
  // What lies on a GPU is copied by BeginPull(). Without periodic checkpoints, the first request allocates the copy.
  if (!writes() || !rank_.engine->state_is_live() || (options.has_async() && !options.async())) return;
  if (options.every_steps() > 0 || options.every_seconds() > 0) copy_.emplace(Runs());
  if (copy_.has_value() && !copy_->fits()) {
    LogWarn("asynchronous checkpoints are off, so training waits for each write", {{"reason", copy_->why()}});
  }
}

Checkpointer::~Checkpointer() = default;

bool Checkpointer::OfFirstReplica() const {
  return rank_.program.layout.roles[assignment_.key().rank()].replica() == 0;
}

bool Checkpointer::writes() const { return !path().empty() && (every_replica_ || OfFirstReplica()); }

bool Checkpointer::WritesBuffers() const {
  const strategies::Layout& layout = rank_.program.layout;
  const uint32_t rank = assignment_.key().rank();
  return writes() && OfFirstReplica() && strategies::ShardInStage(layout, rank) == 0 &&
         layout.roles[rank].tensor() == 0;
}

std::vector<checkpoint::TensorRun> Checkpointer::Runs() const {
  std::vector<checkpoint::TensorRun> runs = RunsToWrite(*rank_.engine, WritesBuffers(), OfFirstReplica());
  if (rank_.outer != nullptr && OfFirstReplica()) {
    for (checkpoint::TensorRun& run : rank_.outer->Runs()) runs.push_back(std::move(run));
  }
  return runs;
}

absl::Status Checkpointer::Begin(uint64_t step, uint64_t samples_consumed) {
  const Checkpoint& options = assignment_.spec().train().checkpoint();
  if (options.has_async() && !options.async()) return Write(step, samples_consumed);
  const bool live = rank_.engine->state_is_live();
  if (live && !copy_.has_value()) copy_.emplace(Runs());
  const bool copies = live && copy_->fits();
  if (absl::Status status = Start(step, samples_consumed, copies); !status.ok()) return status;
  return live && !copies ? AwaitOwnShard() : absl::OkStatus();
}

absl::Status Checkpointer::Write(uint64_t step, uint64_t samples_consumed) {
  if (absl::Status status = Start(step, samples_consumed, /*copy=*/false); !status.ok()) return status;
  return Wait();
}

absl::Status Checkpointer::Start(uint64_t step, uint64_t samples_consumed, bool copy) {
  const SteadyTime begin = RealClock().Read().steady;
  const StepName name{step, assignment_.key().generation()};
  if (absl::Status status = AwaitAllShards(); !status.ok()) return status;
  const absl::Status before = AwaitName();
  const absl::Status own = before.ok() ? Explain(name, Prepare(name)) : before;
  const absl::Status all = Agree(own);
  if (!all.ok()) return own.ok() ? Explain(name, all) : own;
  std::vector<checkpoint::TensorRun> runs = Runs();
  if (copy) {
    if (absl::Status status = rank_.engine->AwaitPull(); !status.ok()) return Explain(name, status);
    runs = copy_->Take(std::move(runs));
  }
  std::optional<Manifest> manifest;
  if (first()) manifest = MakeManifest(assignment_, rank_, step, samples_consumed);
  const Mesh& mesh = rank_.program.layout.mesh;
  const uint32_t file = FileAt(mesh, CoordinateOf(mesh, assignment_.key().rank()));
  writing_ = std::make_unique<Writing>(*rank_.engine, path(), file, std::move(runs), std::move(manifest),
                                       HolderOf(assignment_), name, samples_consumed, begin);
  begun_ = name;
  writing_->Stalled(RealClock().Read().steady - begin);
  return absl::OkStatus();
}

absl::Status Checkpointer::Prepare(const StepName& name) {
  if (absl::Status status = rank_.engine->BeginPull(); !status.ok()) return status;
  return first() ? checkpoint::Begin(path(), HolderOf(assignment_), name) : absl::OkStatus();
}

absl::Status Checkpointer::Wait() {
  if (!begun_.has_value()) return absl::OkStatus();
  const SteadyTime begin = RealClock().Read().steady;
  if (absl::Status status = AwaitAllShards(); !status.ok()) return status;
  if (writing_ != nullptr) {
    if (first()) (void)writing_->AwaitName();
    writing_->Stalled(RealClock().Read().steady - begin);
  }
  return AwaitName();
}

// Whether a host copy fits is each rank's own affair: the other ranks may be in their next step, so this must not be a
// collective. They agree on the shards in their next AwaitAllShards, as ever.
absl::Status Checkpointer::AwaitOwnShard() {
  const SteadyTime begin = RealClock().Read().steady;
  absl::Status status = writing_->AwaitShard();
  writing_->Stalled(RealClock().Read().steady - begin);
  return status;
}

// Waits until every rank's shard is on disk; rank 0 can then publish without a long wait.
absl::Status Checkpointer::AwaitAllShards() {
  if (!begun_.has_value()) return absl::OkStatus();
  const StepName name = *std::exchange(begun_, std::nullopt);
  const absl::Status own = writing_ == nullptr ? absl::OkStatus() : writing_->AwaitShard();
  const absl::Status all = Agree(own);
  return own.ok() ? Explain(name, all) : own;
}

absl::Status Checkpointer::AwaitName() {
  if (writing_ == nullptr) return absl::OkStatus();
  absl::Status status = first() ? writing_->AwaitName() : writing_->AwaitShard();
  if (status.ok() && first()) done_.push(writing_->Result());
  writing_.reset();
  return status;
}

absl::StatusOr<std::optional<Checkpointer::Done>> Checkpointer::Take() {
  if (writing_ != nullptr && writing_->done()) {
    if (absl::Status status = AwaitName(); !status.ok()) return status;
  }
  if (done_.empty()) return std::nullopt;
  Done oldest = done_.front();
  done_.pop();
  return oldest;
}

absl::Status Checkpointer::Agree(const absl::Status& own) const {
  return trainer::Agree(rank_.ranks.groups[every_replica_ ? kWorldGroup : kModelGroup], assignment_.device(), own,
                        absl::UnavailableError("another rank could not write its shard; its own message says why"));
}

}  // namespace muster::trainer
