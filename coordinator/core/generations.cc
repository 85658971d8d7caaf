// Generations: placing them, following their ranks, ending them, and publishing what they write.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/state.h"
#include "coordinator/scheduler/queue.h"
#include "models/inventory.h"
#include "strategies/compile.h"

namespace muster::core {
namespace {

RankPlacement* MutableRank(GenerationMachine& generation, uint32_t rank) {
  for (RankPlacement& placement : *generation.fields().mutable_ranks()) {
    if (placement.rank() == rank) return &placement;
  }
  return nullptr;
}

std::string HintFor(const RankExit& exit, const std::string& job, uint32_t rank) {
  if (exit.cause() == RankExit::SPAWN_FAILED) {
    return "the trainer could not be started: is muster-trainer installed beside muster-worker on that node?";
  }
  if (exit.cause() == RankExit::VANISHED)
    return "the node or its worker daemon went away: muster nodes, and the node's log";
  if (exit.cause() == RankExit::ORPHANED) return "its worker daemon was away for longer than the orphan grace";
  if (exit.signal() == 9)
    return absl::StrCat(
        "killed from outside: by the kernel for memory? Try a smaller batch.microbatch; "
        "on the node: dmesg | tail");
  return absl::StrCat("more of its output: muster logs ", job, " --rank ", rank);
}

bool Counts(const RankExit& exit) { return exit.cause() != RankExit::COMPLETED && exit.cause() != RankExit::STOPPED; }

}  // namespace

const char* Name(EndReason reason) {
  switch (reason) {
    case END_REASON_COMPLETED:
      return "completed";
    case END_REASON_FAILED:
      return "failed";
    case END_REASON_LOST:
      return "lost";
    case END_REASON_PREEMPTED:
      return "preempted";
    case END_REASON_DRAINED:
      return "drained";
    case END_REASON_RESIZED:
      return "resized";
    case END_REASON_CANCELLED:
      return "cancelled";
    default:
      return "none";
  }
}

const RankPlacement* FindRank(const Generation& generation, uint32_t rank) {
  for (const RankPlacement& placement : generation.ranks()) {
    if (placement.rank() == rank) return &placement;
  }
  return nullptr;
}

bool AllExited(const Generation& generation) {
  return std::all_of(generation.ranks().begin(), generation.ranks().end(),
                     [](const RankPlacement& r) { return r.state() == RANK_STATE_EXITED; });
}

bool Finished(const JobEntry& job, const Generation& generation) {
  const JobSpec& spec = job.record().spec();
  if (spec.has_train() && job.record().progress_step() < spec.train().steps()) return false;
  return std::all_of(generation.ranks().begin(), generation.ranks().end(),
                     [](const RankPlacement& r) { return r.state() == RANK_STATE_EXITED && !Counts(r.exit()); });
}

std::vector<JobId> Core::State::Queue() const {
  std::vector<scheduler::Waiting> waiting;
  for (const auto& [id, job] : jobs) {
    if (job.machine.state() == JOB_STATE_QUEUED) {
      waiting.push_back({id, job.record().spec().priority(), job.record().sequence()});
    }
  }
  scheduler::SortQueue(waiting);
  std::vector<JobId> ids;
  for (const scheduler::Waiting& w : waiting) ids.push_back(w.job);
  return ids;
}

std::vector<scheduler::NodeView> Core::State::PlaceableNodes() const {
  std::vector<scheduler::NodeView> views;
  for (const auto& [id, node] : nodes) {
    if (node.machine.state() != NODE_STATE_LIVE || node.record().draining()) continue;
    views.push_back({id, SlotsOf(node)});
  }
  return views;
}

// Strict order: the first job that has to wait for slots in use holds back those behind it, so that small jobs do not
// starve a large one. Jobs in back-off, and jobs that these nodes could never hold, hold nobody back.
void Core::State::Schedule(Turn& turn) {
  for (const JobId& id : Queue()) {
    JobEntry& job = jobs.at(id);
    if (job.not_before.has_value() && turn.now.steady < *job.not_before) continue;
    const Resources& wanted = job.record().spec().resources();
    const scheduler::Decision decision = scheduler::Place({wanted.ranks(), wanted.device()}, PlaceableNodes());
    if (!decision.ranks.empty()) {
      StartGeneration(job, decision, turn);
    } else if (decision.fits_when_idle) {
      return;
    }
  }
}

void Core::State::StartGeneration(JobEntry& job, const scheduler::Decision& decision, Turn& turn) {
  const JobId id(job.record().id());
  const Train& train = job.record().spec().train();
  Generation record;
  record.set_job(id.value());
  record.set_number(job.record().generation() + 1);
  record.set_state(GENERATION_STATE_STARTING);
  record.set_device(decision.device);
  *record.mutable_created() = ToTimestamp(turn.now.wall);
  if (!job.record().checkpoints().empty()) *record.mutable_resume_from() = *job.record().checkpoints().rbegin();

  // The spec was compiled at submit; a later build may refuse what an earlier one took.
  const auto inventory = models::MakeInventory(train.model());
  absl::StatusOr<strategies::Layout> layout =
      inventory.ok() ? strategies::MakeLayout(train, *inventory, static_cast<uint32_t>(decision.ranks.size()))
                     : inventory.status();
  absl::StatusOr<strategies::RankProgram> program =
      layout.ok() ? strategies::Compile(train, *inventory, *layout, 0) : layout.status();
  if (!program.ok()) {
    job.machine.Start(record.number());
    job.machine.Fail(turn.now);
    return Finish(job, turn, "job.failed", absl::StrCat(id.value(), " cannot run: ", program.status().message()));
  }
  record.set_table_sha256(layout->table_sha256);
  record.set_schedule_digest(program->digest);
  for (uint32_t rank = 0; rank < decision.ranks.size(); ++rank) {
    RankPlacement& placement = *record.add_ranks();
    placement.set_rank(rank);
    placement.set_node(decision.ranks[rank].node.value());
    placement.add_slots(decision.ranks[rank].slot);
    *placement.mutable_role() = layout->roles[rank];
    placement.set_state(RANK_STATE_STARTING);
  }
  const uint64_t number = record.number();
  const std::string where = decision.ranks[0].node.value();
  GenerationMachine& generation = job.generations.emplace(number, GenerationMachine(std::move(record))).first->second;
  if (job.generations.size() > kGenerationsKept) {
    turn.deleted_keys.push_back(GenerationKey(id, job.generations.begin()->first));
    job.generations.erase(job.generations.begin());
  }
  job.machine.Start(number);
  job.machine.fields().clear_reason();
  job.not_before.reset();
  job.highest_step = 0;
  job.start_deadline = turn.now.steady + options.start_deadline;
  turn.Touch(id);
  turn.Touch(id, number);
  ChangeDesiredOf(generation, turn);
  turn.Tell(&job, number, where, "generation.starting",
            absl::StrCat(id.value(), " starts as generation ", number, ": ", decision.ranks.size(),
                         decision.ranks.size() == 1 ? " rank on " : " ranks, the first on ", where,
                         generation.record().has_resume_from()
                             ? absl::StrCat(", from step ", generation.record().resume_from().step())
                             : ""));
}

void Core::State::ChangeDesiredOf(const GenerationMachine& generation, Turn& turn) {
  for (const RankPlacement& rank : generation.record().ranks()) turn.ChangeDesired(NodeId(rank.node()));
}

void Core::State::MarkRunning(JobEntry& job, uint32_t rank, Turn& turn) {
  GenerationMachine& generation = *job.newest();
  RankPlacement* placement = MutableRank(generation, rank);
  if (placement == nullptr || placement->state() != RANK_STATE_STARTING) return;
  placement->set_state(RANK_STATE_RUNNING);
  const JobId id(job.record().id());
  turn.Touch(id, generation.record().number());
  const auto& ranks = generation.record().ranks();
  const bool all =
      std::all_of(ranks.begin(), ranks.end(), [](const RankPlacement& r) { return r.state() == RANK_STATE_RUNNING; });
  if (!all || generation.state() != GENERATION_STATE_STARTING) return;
  generation.Run();
  job.machine.Run(turn.now);
  job.start_deadline.reset();
  turn.Touch(id);
  turn.Tell(&job, generation.record().number(), "", "job.running", absl::StrCat(id.value(), " is running"));
}

// A worker reports EXITED only when the coordinator has acknowledged all records of the rank, so a Finished record is
// here before the exit that follows it.
void Core::State::RankEnded(JobEntry& job, uint32_t rank, const RankExit& exit, Turn& turn) {
  GenerationMachine& generation = *job.newest();
  RankPlacement* placement = MutableRank(generation, rank);
  if (placement == nullptr || placement->state() == RANK_STATE_EXITED) return;
  placement->set_state(RANK_STATE_EXITED);
  *placement->mutable_exit() = exit;
  const JobId id(job.record().id());
  const uint64_t number = generation.record().number();
  turn.Touch(id, number);
  ChangeDesiredOf(generation, turn);
  turn.Tell(
      &job, number, placement->node(), "rank.exited",
      absl::StrCat("rank ", rank, " on ", placement->node(), ": ", exit.message().empty() ? "ended" : exit.message()));

  const bool stopping = generation.state() == GENERATION_STATE_STOPPING;
  if (Counts(exit) && !stopping) {
    Failure& failure = *job.machine.fields().mutable_failure();
    failure.Clear();
    failure.set_generation(number);
    failure.set_rank(rank);
    failure.set_node(placement->node());
    *failure.mutable_exit() = exit;
    failure.set_hint(HintFor(exit, id.value(), rank));
    turn.Touch(id);
    const bool lost = exit.cause() == RankExit::VANISHED || exit.cause() == RankExit::ORPHANED;
    return Stop(job, lost ? END_REASON_LOST : END_REASON_FAILED, STOP_INTENT_REQUEUE, turn);
  }
  if (AllExited(generation.record())) {
    // Ended in good order, but not at its last step, and not by our wish: its worker was stopped.
    return EndIfEmpty(job, stopping ? generation.record().reason() : END_REASON_DRAINED, turn);
  }
}

void Core::State::EndIfEmpty(JobEntry& job, EndReason reason, Turn& turn) {
  GenerationMachine& generation = *job.newest();
  if (!AllExited(generation.record())) return;
  if (Finished(job, generation.record())) reason = END_REASON_COMPLETED;
  generation.End(reason, turn.now);
  const JobId id(job.record().id());
  const uint64_t number = generation.record().number();
  turn.Touch(id, number);
  turn.Do(EndGeneration{id, number});
  ChangeDesiredOf(generation, turn);
  turn.Tell(&job, number, "", "generation.ended",
            absl::StrCat("generation ", number, " of ", id.value(), " has ended: ", Name(reason)));
  AfterGeneration(job, generation, turn);
}

void Core::State::On(const RankRecord& event, Turn& turn) {
  JobEntry* job = FindJob(event.rank.job);
  if (job == nullptr || job->record().generation() != event.rank.generation || job->newest() == nullptr ||
      job->newest()->ended()) {
    turn.status = absl::FailedPreconditionError(
        absl::StrCat("a record of ", event.rank.ToString(), " comes too late: that generation is over"));
    return;
  }
  const RankPlacement* placement = FindRank(job->newest()->record(), event.rank.rank);
  if (placement == nullptr) {
    turn.status = absl::FailedPreconditionError(absl::StrCat("a record of ", event.rank.ToString(), ": no such rank"));
    return;
  }
  switch (event.record.body_case()) {
    case Record::kRunning:
      return MarkRunning(*job, event.rank.rank, turn);
    case Record::kCheckpoint:
      // One publisher, so that two ranks cannot disagree.
      if (event.rank.rank == 0) Publish(*job, event.record.checkpoint(), turn);
      return;
    case Record::kFinished:
      if (event.rank.rank == 0 && event.record.finished().step() > job->record().progress_step()) {
        job->machine.fields().set_progress_step(event.record.finished().step());
        turn.Touch(event.rank.job);
      }
      return;
    case Record::kMetrics:
      job->highest_step = std::max(job->highest_step, event.record.metrics().step());
      return;
    case Record::BODY_NOT_SET:
      return;
  }
}

// Compare-and-set: of the current generation only, and only forward.
void Core::State::Publish(JobEntry& job, const CheckpointWritten& written, Turn& turn) {
  Job& record = job.machine.fields();
  const uint64_t last = record.checkpoints().empty() ? 0 : record.checkpoints().rbegin()->step();
  if (!record.checkpoints().empty() && written.step() <= last) return;
  PublishedCheckpoint& published = *record.add_checkpoints();
  published.set_step(written.step());
  published.set_generation(record.generation());
  published.set_directory(written.directory());
  published.set_samples_consumed(written.samples_consumed());
  *published.mutable_published() = ToTimestamp(turn.now.wall);
  const int keep = static_cast<int>(std::max(2u, record.spec().train().checkpoint().keep()));
  while (record.checkpoints_size() > keep) record.mutable_checkpoints()->DeleteSubrange(0, 1);
  turn.Touch(JobId(record.id()));
  ChangeDesiredOf(*job.newest(), turn);
  turn.Tell(&job, record.generation(), "", "checkpoint.published",
            absl::StrCat("checkpoint of step ", written.step(), " (", written.directory(), ")"));
}

}  // namespace muster::core
