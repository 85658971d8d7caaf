#include "coordinator/core/generations.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "common/some_of.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/links.h"
#include "coordinator/core/topology.h"
#include "coordinator/core/wanted_plans.h"

namespace muster::core {
namespace {

constexpr size_t kDirectoryBytes = 255;
constexpr size_t kReportedPathBytes = 1024;
// Larger generations keep only the message of the first fault, in Job.failure: a row must stay below 512 KiB.
constexpr int kRanksWithMessages = 512;
constexpr size_t kGenerationsKept = 50;  // so few that a job and its generations are deleted in one commit
constexpr absl::Duration kLongestOverdue = absl::Minutes(10);    // between two reports that a stop is overdue
constexpr absl::Duration kIdleEventInterval = absl::Minutes(1);  // of a generation
// Of checkpoints that its script reports: the first ones, then one in a while.
constexpr uint32_t kFirstCheckpointEvents = 16;
constexpr absl::Duration kCheckpointEventInterval = absl::Minutes(1);

// "n", "n, m and 3 more".
std::string Where(const Generation& generation) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> nodes;
  for (const RankPlacement& rank : generation.ranks()) {
    if (std::find(nodes.rbegin(), nodes.rend(), rank.node()) == nodes.rend()) nodes.push_back(rank.node());
  }
  return SomeOf(nodes, kNamed);
}

std::string WhyEnded(const RankExit& exit, const RankPlacement& rank) {
  return absl::StrCat(exit.message(), " (on ", rank.node(), ")");
}

// "rank 0 on n, rank 3 on m and 5 more".
std::string Names(const Generation& generation, const std::vector<uint32_t>& ranks) {
  constexpr size_t kNamed = 3;
  return SomeOf(ranks, kNamed, ", ", [&](std::string* out, uint32_t rank) {
    absl::StrAppend(out, RankName(generation, rank), " on ", generation.ranks(static_cast<int>(rank)).node());
  });
}

template <typename Matches>
std::vector<uint32_t> RanksThat(const Generation& generation, const Matches& matches) {
  std::vector<uint32_t> ranks;
  for (const RankPlacement& rank : generation.ranks()) {
    if (matches(rank)) ranks.push_back(rank.rank());
  }
  return ranks;
}

// Ranks that do not run yet and have not arrived at the rendezvous while other ranks wait there.
std::vector<uint32_t> MissingRanks(const JobEntry& job) {
  if (!job.running.has_value() || job.running->arrived.empty()) return {};
  return RanksThat(job.newest()->record(), [&](const RankPlacement& rank) {
    return rank.state() == RANK_STATE_STARTING && !job.running->arrived.contains(rank.rank());
  });
}

PublishedCheckpoint CheckpointOf(const Job& job, const CheckpointWritten& written, absl::Time now) {
  PublishedCheckpoint checkpoint;
  checkpoint.set_step(written.step());
  checkpoint.set_generation(job.generation());
  checkpoint.set_directory(written.directory());
  checkpoint.set_samples_consumed(written.samples_consumed());
  *checkpoint.mutable_published() = ToProto(now);
  return checkpoint;
}

}  // namespace

void Generations::Recover(JobEntry& job, Now now) {
  RunningGeneration& running = job.running.emplace();
  running.held_since = running.started = running.saved_at = now.steady;
  const Generation& generation = job.newest()->record();
  switch (job.machine.state()) {
    case JOB_STATE_STARTING:
      running.start_deadline = now.steady + TimeoutsOf(job.record()).start;
      break;
    case JOB_STATE_RUNNING:
      if (job.RunsOnFewer()) running.grow_at = now.steady + options_->grow_after;
      break;
    default:
      running.stop_overdue = now.steady + 2 * StopDeadline(job.record().spec(), generation.reason());
  }
  plans_->Ask(job.id(), Plans::Purpose::kGeneration, SpecOf(job.record(), generation), PlacedSlots(generation), {});
}

namespace {

bool HasDigests(const Generation& generation, const std::vector<std::string>& digests) {
  if (digests.at(0) != generation.schedule_digest()) return false;
  return digests.size() == 1 || std::equal(digests.begin(), digests.end(), generation.stage_digests().begin(),
                                           generation.stage_digests().end());
}

}  // namespace

// The table is derived from the spec and the slots, so it is not stored. If this build plans a different one, the
// generation keeps its digest: running ranks continue, a rank that starts now refuses, and the next generation uses
// this build's plan.
void Generations::TakePlan(JobEntry& job, Transaction& transaction) {
  const JobId id = job.id();
  const absl::StatusOr<PlannedPtr> plan = *plans_->Find(id, Plans::Purpose::kGeneration)->answer;
  plans_->Drop(id, Plans::Purpose::kGeneration);
  const Generation& generation = job.newest()->record();
  if (plan.ok() && (*plan)->table_sha256 == generation.table_sha256() && HasDigests(generation, (*plan)->digests)) {
    job.running->plan = *plan;
  } else {
    transaction.ChangeDesired(*job.newest());
  }
}

void Generations::Start(JobEntry& job, Placement placement, Transaction& transaction) {
  const JobId id = job.id();
  const scheduler::Decision& decision = placement.decision;
  const Planned& plan = *placement.plan;
  Generation record;
  record.set_job(id.value());
  record.set_number(NextNumber(job.record()));
  record.set_state(GENERATION_STATE_STARTING);
  record.set_device(decision.device);
  *record.mutable_created() = ToProto(transaction.now.wall);
  if (!job.record().checkpoints().empty()) *record.mutable_resume_from() = *job.record().checkpoints().rbegin();
  record.set_resumed_step(record.resume_from().step());
  record.set_table_sha256(plan.table_sha256);
  record.set_schedule_digest(plan.digests.at(0));
  if (plan.digests.size() > 1) record.mutable_stage_digests()->Assign(plan.digests.begin(), plan.digests.end());
  if (plan.strategy.has_value()) {
    *record.mutable_strategy() = *plan.strategy;
    record.set_activation_checkpointing(plan.activation_checkpointing);
    if (plan.chosen.has_value()) *record.mutable_chosen() = *plan.chosen;
  }
  if (plan.compression.has_value()) *record.mutable_compression() = *plan.compression;
  record.set_strategy_reason(plan.strategy_reason);
  for (uint32_t rank = 0; rank < decision.ranks.size(); ++rank) {
    RankPlacement& placed = *record.add_ranks();
    placed.set_rank(rank);
    placed.set_node(decision.ranks[rank].node.value());
    placed.add_slots(decision.ranks[rank].slot);
    *placed.mutable_role() = plan.roles.at(rank);
    placed.set_memory_bytes(placement.slots.ranks[rank].memory_bytes);
    placed.set_flops_per_second(placement.slots.ranks[rank].flops_per_second);
    placed.set_state(RANK_STATE_STARTING);
  }
  record.set_device_model(placement.slots.model);
  record.set_fast_bf16(placement.slots.fast_bf16);
  if (const std::optional<strategies::Link>& network = placement.slots.network; network.has_value()) {
    record.mutable_network()->set_bytes_per_second(network->bytes_per_second);
    record.mutable_network()->set_latency_seconds(network->seconds);
    const strategies::CoreRates& rates = placement.slots.core;
    CoreRates core;
    core.set_socket_bytes_per_second(rates.socket_bytes_per_second);
    core.set_top_k_seconds(rates.compressing.top_k);
    core.set_power_sgd_seconds(rates.compressing.power_sgd);
    core.set_int8_seconds(rates.compressing.int8);
    if (core.ByteSizeLong() > 0) *record.mutable_network()->mutable_core() = core;
  }
  if (!job.record().spec().has_exec()) {  // a program measures nothing
    for (LinkPair& pair : PairsToMeasure(*records_, record, options_->links_valid_for, transaction.now)) {
      *record.add_measure_links() = std::move(pair);
    }
  }
  const uint64_t number = record.number();
  GenerationMachine& generation = job.generations.emplace(number, GenerationMachine(std::move(record))).first->second;
  if (job.generations.size() > kGenerationsKept) {
    transaction.deleted_keys.push_back(GenerationKey(id, job.generations.begin()->first));
    job.generations.erase(job.generations.begin());
  }
  plans_->DropAll(id);
  job.machine.Start(number);
  job.refused.clear();
  job.not_before.reset();
  job.whole_until.reset();
  job.time.Place(generation.record().resumed_step(), transaction.now.steady);
  RunningGeneration& running = job.running.emplace();
  running.held_since = running.started = running.saved_at = transaction.now.steady;
  running.plan = std::move(placement.plan);
  running.start_deadline = transaction.now.steady + TimeoutsOf(job.record()).start;
  const int ranks = generation.record().ranks_size();
  std::set<std::string> nodes;
  for (const RankPlacement& rank : generation.record().ranks()) nodes.insert(rank.node());
  const std::string domains = DomainsOf(job.record().spec().resources(), *records_, nodes);
  const std::string what = absl::StrCat("generation ", number, ": ", ranks, ranks == 1 ? " rank on " : " ranks on ",
                                        Where(generation.record()), domains.empty() ? "" : ", " + domains,
                                        generation.record().has_resume_from()
                                            ? absl::StrCat(", from step ", generation.record().resume_from().step())
                                            : "");
  job.machine.fields().set_reason(absl::StrCat("starting ", what));
  transaction.Touch(id);
  transaction.Touch(id, number);
  transaction.ChangeDesired(generation);
  transaction.AddEvent(&job, number, decision.ranks[0].node.value(), "generation.starting",
                       absl::StrCat(id.value(), " is starting ", what));
  if (const std::string& why = generation.record().strategy_reason(); !why.empty()) {
    transaction.AddEvent(
        &job, number, "", "generation.strategy",
        absl::StrCat(job.record().spec().train().strategy().has_auto_() ? "strategy auto: " : "", why));
  }
}

void Generations::Stop(JobEntry& job, EndReason reason, StopIntent intent, const std::string& why,
                       Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  const JobId id = job.id();
  const uint64_t number = generation.record().number();
  if (generation.state() == GENERATION_STATE_STOPPING) {
    const bool by_user = intent == STOP_INTENT_CANCEL || intent == STOP_INTENT_PAUSE;
    if (!by_user || job.record().stop_intent() == intent) return;
    // The ranks are already stopping. Only a stop that a fault started stays a fault.
    if (!IsFault(generation.record().reason())) generation.Stop(reason);
    transaction.Touch(id, number);
    return jobs_->ChangeIntent(job, intent, why, transaction);
  }
  jobs_->CountHeld(job, transaction);
  generation.Stop(reason);
  plans_->Drop(id, Plans::Purpose::kGrowth);
  if (IsFault(reason)) {
    job.time.Fault(transaction.now.steady);
  } else if (intent == STOP_INTENT_REQUEUE) {
    job.time.Enter(TimeTracker::Phase::kRecovering, transaction.now.steady);
  }
  job.running->start_deadline.reset();
  job.running->stop_overdue = transaction.now.steady + 2 * StopDeadline(job.record().spec(), reason);
  transaction.Touch(id, number);
  transaction.ChangeDesired(generation);
  jobs_->ChangeIntent(job, intent, why, transaction);
}

void Generations::Report(JobEntry& job, uint32_t rank, RankState state, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (!generation.Report(rank, state)) return;
  transaction.Touch(job.id(), generation.record().number());
  RunIfAllRanksRun(job, transaction);
}

void Generations::RunIfAllRanksRun(JobEntry& job, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (generation.state() != GENERATION_STATE_STARTING || !generation.EveryRankRuns()) return;
  const JobId id = job.id();
  generation.Run();
  job.machine.Run(transaction.now);
  job.time.Run(transaction.now.steady);
  job.running->started = job.running->saved_at = transaction.now.steady;
  if (job.RunsOnFewer()) job.running->grow_at = transaction.now.steady + options_->grow_after;
  job.machine.fields().set_reason(absl::StrCat(
      "generation ", generation.record().number(), " on ", Where(generation.record()),
      job.RunsOnFewer() ? absl::StrCat(", with ", generation.record().ranks_size(), " of ",
                                       job.record().spec().resources().ranks(), " ranks until more slots are free")
                        : ""));
  job.running->start_deadline.reset();
  transaction.Touch(id);
  transaction.Touch(id, generation.record().number());
  transaction.AddEvent(&job, generation.record().number(), "", "job.running", absl::StrCat(id.value(), " is running"));
}

void Generations::ReportStep(JobEntry& job, uint64_t step, Transaction& transaction) {
  if (step <= job.running->highest_step) return;
  job.running->highest_step = step;
  job.running->reported_at = transaction.now.steady;
  if (job.newest()->state() != GENERATION_STATE_RUNNING) return;
  job.running->step_times.Saw(step, transaction.now.steady);
  job.time.Step(step, transaction.now.steady);
}

// A worker reports EXITED only when the coordinator has acknowledged all records of the rank, so a Finished record is
// here before the exit that follows it.
void Generations::Exit(JobEntry& job, uint32_t number, RankExit exit, EndReason fault, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  const RankPlacement& rank = *generation.rank(number);
  const JobId id = job.id();
  const bool stopping = generation.state() == GENERATION_STATE_STOPPING;
  exit = ClassifyExit(std::move(exit), rank);
  // The worker does not know the ranks' places.
  absl::string_view rest = exit.message();
  if (absl::ConsumePrefix(&rest, absl::StrCat("rank ", number, " "))) {
    exit.set_message(absl::StrCat(RankName(generation.record(), number), " ", rest));
  }
  const bool faulty = stopping && IsFault(generation.record().reason()) &&
                      job.record().failure().generation() == generation.record().number();
  if (faulty) AddToFault(job, rank, exit, transaction);
  if (exit.cause() == RankExit::REFUSED && exit.of_node()) NoteRefusal(job, rank.node(), exit, transaction);
  RankExit kept = exit;
  kept.clear_last_lines();
  if (generation.record().ranks_size() > kRanksWithMessages) kept.clear_message();
  if (stopping) {  // it gives slots back
    jobs_->CountHeld(job, transaction);
    transaction.Touch(id);
  }
  generation.Exit(number, std::move(kept));
  transaction.Touch(id, generation.record().number());
  transaction.ChangeDesired(NodeId(rank.node()));

  const std::string why = WhyEnded(exit, rank);
  const bool completed = exit.cause() == RankExit::COMPLETED;
  // An orderly exit before the last step that the coordinator did not request: the worker is leaving and stops its
  // ranks, or has found that the node cannot take any; else another process sent a signal.
  const Node& node = records_->nodes.at(NodeId(rank.node())).record();
  const bool stopped = exit.cause() == RankExit::STOPPED && (node.leaving() || !NotReady(node).empty());
  // Exits of other ranks after the first fault are its consequences and are not reported as events.
  if (!stopping) transaction.AddEvent(&job, generation.record().number(), rank.node(), "rank.exited", why);
  if (!stopping && !completed && !stopped) {
    Failure& failure = *job.machine.fields().mutable_failure();
    failure.Clear();
    failure.set_generation(generation.record().number());
    if (generation.state() == GENERATION_STATE_RUNNING) {
      failure.set_step(std::max(job.running->highest_step, generation.record().resumed_step()) + 1);
    }
    SetCulprit(job, rank, exit, transaction);
  }
  const EndReason reason = stopped ? END_REASON_DRAINED : fault;
  if (generation.EveryRankExited()) return End(job, reason, transaction);
  if (!stopping && !completed) return Stop(job, reason, STOP_INTENT_REQUEUE, why, transaction);
  RunIfAllRanksRun(job, transaction);
}

void Generations::NoteRefusal(JobEntry& job, const std::string& node, const RankExit& exit, Transaction& transaction) {
  if (job.Avoids(NodeId(node))) return;
  Job& record = job.machine.fields();
  NodeRefusal& refusal = *record.add_refused_by();
  refusal.set_node(node);
  refusal.set_message(exit.message());
  refusal.set_generation(record.generation());
  transaction.Touch(job.id());
}

void Generations::SetCulprit(JobEntry& job, const RankPlacement& rank, const RankExit& exit, Transaction& transaction) {
  Failure& failure = *job.machine.fields().mutable_failure();
  failure.set_rank(rank.rank());
  failure.set_node(rank.node());
  failure.set_hint(HintFor(exit, job.id().value(), rank.rank()));
  *failure.mutable_exit() = exit;
  transaction.Touch(job.id());
  if (MayBlameNode(exit)) transaction.Blame(NodeId(rank.node()), job.id(), exit.message());
}

// Called when a rank ends after the first fault of its generation: either because of that fault, or as its culprit. A
// rank whose collective fails, since another rank was killed, may be reported before that one.
void Generations::AddToFault(JobEntry& job, const RankPlacement& rank, RankExit& exit, Transaction& transaction) {
  Failure& failure = *job.machine.fields().mutable_failure();
  if (exit.cause() == RankExit::COMPLETED) return;
  transaction.Touch(job.id());
  if (rank.rank() != failure.rank()) {
    const bool culprit = failure.exit().of_other_rank() && !exit.of_other_rank() && exit.cause() != RankExit::STOPPED;
    failure.add_collateral(culprit ? failure.rank() : rank.rank());
    if (!culprit) return;
    SetCulprit(job, rank, exit, transaction);
    const std::string why = WhyEnded(exit, rank);
    transaction.AddEvent(&job, failure.generation(), rank.node(), "rank.exited", why);
    if (job.record().stop_intent() == STOP_INTENT_REQUEUE) job.machine.fields().set_reason(why);
    return;
  }
  RankExit& first = *failure.mutable_exit();
  if (first.cause() != RankExit::HUNG) return;
  exit.set_cause(RankExit::HUNG);
  exit.set_message(first.message());
  exit.set_of_other_rank(false);  // one that runs again may say so, of ranks that ended since
  first = exit;                   // keeps the last log lines
}

void Generations::End(JobEntry& job, EndReason reason, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (generation.state() == GENERATION_STATE_STOPPING) reason = generation.record().reason();
  if (generation.EveryRankCompleted()) reason = END_REASON_COMPLETED;
  jobs_->CountHeld(job, transaction);
  generation.End(reason, transaction.now);
  const JobId id = job.id();
  const uint64_t number = generation.record().number();
  transaction.Touch(id, number);
  transaction.Do(EndGeneration{id, number});
  transaction.AddEvent(&job, number, "", "generation.ended",
                       absl::StrCat("generation ", number, " of ", id.value(), " ended: ", Name(reason)));
  jobs_->AfterGeneration(job, transaction);
}

void Generations::On(const RankRecord& event, Transaction& transaction) {
  JobEntry* job = records_->FindJob(event.rank.job);
  if (job == nullptr || job->record().generation() != event.rank.generation || !job->running.has_value()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a record of ", event.rank.ToString(), " arrived after that generation ended"));
    return;
  }
  if (job->newest()->rank(event.rank.rank) == nullptr) {
    transaction.status =
        absl::FailedPreconditionError(absl::StrCat("a record of ", event.rank.ToString(), ": no such rank"));
    return;
  }
  switch (event.record.body_case()) {
    case Record::kRunning:
      KeepSpeed(*job->newest()->rank(event.rank.rank), event.record.running().flops_per_second(), transaction);
      KeepLinks(*records_, *job, *job->newest()->rank(event.rank.rank), event.record.running().links(), transaction);
      Resume(*job, event.record.running().resumed_step(), transaction);
      return Report(*job, event.rank.rank, RANK_STATE_RUNNING, transaction);
    case Record::kCheckpoint:
      // Only rank 0 publishes, so ranks cannot disagree.
      if (event.rank.rank != 0) return;
      if (job->record().spec().has_exec()) return NoteCheckpoint(*job, event.record.checkpoint(), transaction);
      job->time.Stall(event.record.checkpoint().stall_seconds());
      return Publish(*job, event.record.checkpoint(), transaction);
    case Record::kFinished:
      if (job->newest()->Finish(event.rank.rank)) transaction.Touch(event.rank.job, event.rank.generation);
      if (AdvanceProgress(job->machine.fields(), event.record.finished().step())) transaction.Touch(event.rank.job);
      return;
    case Record::kMetrics:
      return ReportStep(*job, event.record.metrics().step(), transaction);
    case Record::kIdle:
      return NoteIdle(*job, *job->newest()->rank(event.rank.rank), event.record.idle(), transaction);
    case Record::kFailed:  // the worker reports the failure with the exit
    case Record::kTrace:   // handled by the shell
    case Record::BODY_NOT_SET:
      return;
  }
}

void Generations::On(const RankArrived& event, Transaction& transaction) {
  transaction.status = CheckCurrent(event.rank);
  if (transaction.status.ok()) records_->jobs.at(event.rank.job).running->arrived.insert(event.rank.rank);
}

// Stores the speed on the slot, for the layouts of later generations of any job.
void Generations::KeepSpeed(const RankPlacement& rank, double flops_per_second, Transaction& transaction) {
  NodeEntry* node = records_->FindNode(NodeId(rank.node()));
  if (node == nullptr || !std::isfinite(flops_per_second) || flops_per_second <= 0) return;
  for (Slot& slot : *node->machine.fields().mutable_slots()) {
    if (std::find(rank.slots().begin(), rank.slots().end(), slot.index()) == rank.slots().end()) continue;
    if (slot.flops_per_second() == flops_per_second) continue;
    slot.set_flops_per_second(flops_per_second);
    transaction.Touch(NodeId(rank.node()));
  }
}

// The ranks have found where they resume: another step than expected if newer checkpoints are damaged.
void Generations::Resume(JobEntry& job, uint64_t step, Transaction& transaction) {
  if (!job.newest()->Resume(step)) return;
  const Generation& generation = job.newest()->record();
  job.time.Resume(step);
  transaction.Touch(job.id(), generation.number());
  if (step >= generation.resume_from().step()) return;
  std::vector<std::string> skipped;
  for (const PublishedCheckpoint& checkpoint : job.record().checkpoints()) {
    if (checkpoint.step() > step) skipped.push_back(checkpoint.directory());
  }
  transaction.AddEvent(
      &job, generation.number(), "", "checkpoint.skipped",
      absl::StrCat("generation ", generation.number(), " resumed from step ", step, ": its ranks found ",
                   absl::StrJoin(skipped, ", "), " damaged or missing (muster logs ", job.record().id(), ")"));
}

// Compare-and-set: accepts only the current generation, and from it only later steps. Checkpoints that its ranks
// skipped leave the list, since the next generation resumes from the last one there. Steps in the list ascend.
void Generations::Publish(JobEntry& job, const CheckpointWritten& written, Transaction& transaction) {
  Job& record = job.machine.fields();
  const std::string& directory = written.directory();
  if (directory.empty() || directory.size() > kDirectoryBytes || directory[0] == '.' ||
      absl::StrContains(directory, '/')) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a checkpoint of ", record.id(), " must name a folder below checkpoint.path, got ", directory));
    return;
  }
  auto& published = *record.mutable_checkpoints();
  const auto is_own = [&] { return published.rbegin()->generation() == record.generation(); };
  if (!published.empty() && is_own() && written.step() <= published.rbegin()->step()) return;
  const uint64_t resumed = job.newest()->record().resumed_step();
  const auto skipped = [&](uint64_t step) { return step > resumed || step >= written.step(); };
  while (!published.empty() && !is_own() && skipped(published.rbegin()->step())) published.RemoveLast();
  *record.add_checkpoints() = CheckpointOf(record, written, transaction.now.wall);
  const size_t keep = std::max(2u, record.spec().train().checkpoint().keep());
  while (static_cast<size_t>(published.size()) > keep) published.DeleteSubrange(0, 1);
  AdvanceProgress(record, written.step());
  job.running->saved_at = transaction.now.steady;
  transaction.Touch(JobId(record.id()));
  transaction.ChangeDesired(*job.newest());
  transaction.AddEvent(&job, record.generation(), "", "checkpoint.published",
                       absl::StrCat("checkpoint of step ", written.step(), " (", written.directory(), ")"));
}

void Generations::NoteCheckpoint(JobEntry& job, const CheckpointWritten& written, Transaction& transaction) {
  if (written.directory().empty() || written.directory().size() > kReportedPathBytes) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        "a checkpoint of ", job.record().id(), " must have a name of 1 to ", kReportedPathBytes, " bytes"));
    return;
  }
  Job& record = job.machine.fields();
  const PublishedCheckpoint& known = record.script_checkpoint();
  if (known.generation() == record.generation() && written.step() <= known.step()) return;
  AdvanceProgress(record, written.step());
  *record.mutable_script_checkpoint() = CheckpointOf(record, written, transaction.now.wall);
  transaction.Touch(job.id());
  // A script may report one each step, and events stay as long as their job.
  RunningGeneration& running = *job.running;
  const SteadyTime now = transaction.now.steady;
  if (running.checkpoint_events >= kFirstCheckpointEvents && now - running.checkpoint_at < kCheckpointEventInterval) {
    return;
  }
  ++running.checkpoint_events;
  running.checkpoint_at = now;
  transaction.AddEvent(&job, record.generation(), "", "checkpoint.reported",
                       absl::StrCat("checkpoint of step ", written.step(), ", by its script: ", written.directory()));
}

// Ranks may wait for rank 0, which alone reports; and where all hang, the first event is enough.
void Generations::NoteIdle(JobEntry& job, const RankPlacement& rank, const Idle& idle, Transaction& transaction) {
  RunningGeneration& running = *job.running;
  const SteadyTime now = transaction.now.steady;
  if (running.reported_at.has_value() && now - *running.reported_at < FromProto(idle.duration())) return;
  if (running.idle_at.has_value() && now - *running.idle_at < kIdleEventInterval) return;
  running.idle_at = now;
  transaction.AddEvent(
      &job, job.record().generation(), rank.node(), "rank.idle",
      absl::StrCat(RankName(job.newest()->record(), rank.rank()), " on ", rank.node(),
                   " has used no CPU or GPU, and read or written nothing, for ", idle.duration().seconds(),
                   " s; it may hang. To see its stack: py-spy dump --pid ", idle.process(),
                   " on the node. Output: muster logs ", job.record().id(), " --rank ", rank.rank()));
}

absl::Status Generations::CheckCurrent(const RankId& rank) const {
  const JobEntry* job = records_->FindJob(rank.job);
  if (job == nullptr || !job->running.has_value() || job->record().generation() != rank.generation) {
    return absl::FailedPreconditionError(
        absl::StrCat("generation ", rank.generation, " is not the current one of job ", rank.job.value()));
  }
  if (job->newest()->rank(rank.rank) == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(rank.ToString(), ": there is no such rank"));
  }
  return absl::OkStatus();
}

std::string Generations::NamesOfMissing(const JobEntry& job) {
  const std::vector<uint32_t> missing = MissingRanks(job);
  if (missing.empty()) return "";
  return absl::StrCat(Names(job.newest()->record(), missing),
                      missing.size() == 1 ? " has not arrived yet" : " have not arrived yet");
}

void Generations::CheckStart(JobEntry& job, Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  // The missing ranks, if some have arrived; those wait in the rendezvous and are not at fault.
  std::vector<uint32_t> late = MissingRanks(job);
  const char* what = late.empty() ? "did not finish a first step within " : "did not arrive at the rendezvous within ";
  if (late.empty()) {
    late = RanksThat(generation, [](const RankPlacement& rank) { return rank.state() == RANK_STATE_STARTING; });
  }
  Failure failure;
  failure.set_generation(generation.number());
  failure.set_rank(late.front());
  failure.set_node(generation.ranks(static_cast<int>(late.front())).node());
  failure.mutable_exit()->set_cause(RankExit::FAILED);
  failure.mutable_exit()->set_message(
      absl::StrCat(what, absl::FormatDuration(TimeoutsOf(job.record()).start), ": ", Names(generation, late)));
  failure.set_hint(absl::StrCat("output of the rank: muster logs ", job.record().id(), " --rank ", late.front()));
  const std::string why = failure.exit().message();
  transaction.Blame(NodeId(failure.node()), job.id(), why);
  *job.machine.fields().mutable_failure() = std::move(failure);
  Stop(job, END_REASON_FAILED, STOP_INTENT_REQUEUE, why, transaction);
}

// Asks again and informs users, at growing intervals, until it works.
void Generations::CheckStop(JobEntry& job, Transaction& transaction) {
  const Generation& generation = job.newest()->record();
  const std::string why = absl::StrCat(
      "the stop is overdue, still running: ",
      Names(generation,
            RanksThat(generation, [](const RankPlacement& rank) { return rank.state() != RANK_STATE_EXITED; })),
      "; the worker should have killed it: see the log of that worker, or restart it");
  RunningGeneration& running = *job.running;
  const absl::Duration first = 2 * StopDeadline(job.record().spec(), generation.reason());
  running.stop_overdue = transaction.now.steady +
                         std::min(first * (int64_t{1} << std::min(++running.overdue_stops, 10u)), kLongestOverdue);
  transaction.ChangeDesired(*job.newest());
  for (const RankPlacement& rank : generation.ranks()) {
    if (rank.state() != RANK_STATE_EXITED) transaction.Blame(NodeId(rank.node()), job.id(), "its rank did not stop");
  }
  jobs_->ChangeIntent(job, job.record().stop_intent(), why, transaction);
}

Timeouts TimeoutsOf(const Timeouts& service, const JobSpec& spec) {
  Timeouts timeouts = Stretch(service, absl::Seconds(spec.detection_seconds()));
  const AxisTimeouts& axes = spec.train().communication().timeout_seconds();
  const auto add = [&](const char* axis, bool set, double seconds) {
    if (set) timeouts.axes.push_back({axis, absl::Seconds(seconds)});
  };
  add("pipeline", axes.has_pipeline(), axes.pipeline());
  add("replica", axes.has_replica(), axes.replica());
  add("shard", axes.has_shard(), axes.shard());
  add("context", axes.has_context(), axes.context());
  add("tensor", axes.has_tensor(), axes.tensor());
  return timeouts;
}

Timeouts Generations::TimeoutsOf(const Job& job) const { return core::TimeoutsOf(options_->timeouts, job.spec()); }

absl::Duration Generations::StopDeadline(const JobSpec& spec, EndReason reason) const {
  const Timeouts timeouts = core::TimeoutsOf(options_->timeouts, spec);
  if (IsFault(reason)) return timeouts.kill;
  return timeouts.stop + absl::Seconds(spec.exec().stop_grace_seconds());
}

JobSpec SpecOf(const Job& job, const Generation& generation) {
  JobSpec spec = job.spec();
  if (generation.has_compression()) {
    *spec.mutable_train()->mutable_communication()->mutable_compression() = generation.compression();
  }
  if (!generation.has_strategy()) return spec;
  *spec.mutable_train()->mutable_strategy() = generation.strategy();
  if (generation.activation_checkpointing()) spec.mutable_train()->set_activation_checkpointing(true);
  if (generation.has_chosen()) spec.mutable_train()->MergeFrom(generation.chosen());
  return spec;
}

Slots PlacedSlots(const Generation& generation) {
  Slots slots{.device = generation.device(), .model = generation.device_model(), .fast_bf16 = generation.fast_bf16()};
  if (generation.has_network()) {
    const double latency = generation.network().latency_seconds();
    slots.network = strategies::Link{generation.network().bytes_per_second(), latency, latency};
    const CoreRates& core = generation.network().core();
    slots.core = {core.socket_bytes_per_second(),
                  {.top_k = core.top_k_seconds(), .power_sgd = core.power_sgd_seconds(), .int8 = core.int8_seconds()}};
  }
  std::map<std::string, uint32_t> numbers;
  for (const RankPlacement& rank : generation.ranks()) {
    const uint32_t node = numbers.emplace(rank.node(), static_cast<uint32_t>(numbers.size())).first->second;
    slots.ranks.push_back({node, rank.memory_bytes(), rank.flops_per_second()});
  }
  return slots;
}

}  // namespace muster::core
