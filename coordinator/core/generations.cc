// Generations: placement, the states of their ranks, their end, and the checkpoints that they publish.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/proto_time.h"
#include "coordinator/core/exits.h"
#include "coordinator/core/state.h"

namespace muster::core {
namespace {

constexpr size_t kDirectoryBytes = 255;
// Larger generations keep only the message of the first fault, in Job.failure: a row must stay below 512 KiB.
constexpr int kRanksWithMessages = 512;

// "n", "n, m and 3 more".
std::string Where(const Generation& generation) {
  constexpr size_t kNamed = 3;
  std::vector<std::string> nodes;
  for (const RankPlacement& rank : generation.ranks()) {
    if (std::find(nodes.rbegin(), nodes.rend(), rank.node()) == nodes.rend()) nodes.push_back(rank.node());
  }
  const size_t named = std::min(nodes.size(), kNamed);
  const std::string text = absl::StrJoin(nodes.begin(), nodes.begin() + static_cast<ptrdiff_t>(named), ", ");
  return named == nodes.size() ? text : absl::StrCat(text, " and ", nodes.size() - named, " more");
}

constexpr size_t kRefusedKept = 16;
constexpr int kSizesTried = 8;  // in one pass, for a job that may run on fewer ranks

bool SameSlots(const scheduler::Decision& a, const scheduler::Decision& b) {
  const auto same = [](const scheduler::RankSlot& x, const scheduler::RankSlot& y) {
    return x.node == y.node && x.slot == y.slot && x.memory_bytes == y.memory_bytes;
  };
  return a.device == b.device && std::equal(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(), same);
}

}  // namespace

std::vector<scheduler::Claim> Core::State::Queue() const {
  std::vector<scheduler::Claim> waiting;
  for (const auto& [id, job] : jobs) {
    if (job.machine.state() == JOB_STATE_QUEUED) waiting.push_back(job.claim());
  }
  scheduler::SortQueue(waiting);
  return waiting;
}

std::vector<scheduler::NodeView> Core::State::NodeViews() const {
  using scheduler::Availability;
  const Holders holders = SlotHolders();
  std::vector<scheduler::NodeView> views;
  for (const auto& [id, node] : nodes) {
    Availability availability = Availability::kTakesRanks;
    if (node.machine.state() == NODE_STATE_AWAY || !node.reported) availability = Availability::kAway;
    if (node.record().draining() || node.record().leaving()) availability = Availability::kDraining;
    if (node.machine.state() == NODE_STATE_LOST) availability = Availability::kLost;
    scheduler::NodeView& view = views.emplace_back();
    view.id = id;
    view.availability = availability;
    const auto here = holders.find(id);
    for (const Slot& slot : node.record().slots()) {
      scheduler::SlotView& its = view.slots.emplace_back();
      its.index = slot.index();
      its.device = slot.device();
      its.memory_bytes = slot.memory_bytes();
      if (here == holders.end()) continue;
      if (const auto held = here->second.find(slot.index()); held != here->second.end()) {
        its.holder = jobs.at(held->second.job).claim();
      }
    }
  }
  return views;
}

// A scheduling pass costs time proportional to the cluster. Reports arrive by the thousand when many nodes start,
// return or train. Most of them do not affect queued jobs, and for the others one pass in the next tick is enough.
void Core::State::ScheduleFor(const Event& event, Transaction& transaction) {
  const bool contact = std::holds_alternative<NodeConnected>(event) || std::holds_alternative<NodeDisconnected>(event);
  const bool report = std::holds_alternative<NodeObserved>(event) || std::holds_alternative<RankRecord>(event) ||
                      std::holds_alternative<RankArrived>(event) || std::holds_alternative<PlanReady>(event);
  if (!contact && !report) return Schedule(transaction);
  if (contact || !transaction.Empty() || !settled) schedule_at = transaction.now.steady;
}

// Follows the rule of scheduler/pass.h. Jobs in backoff do not hold back others.
void Core::State::Schedule(Transaction& transaction) {
  settled = true;
  schedule_at.reset();
  const std::vector<scheduler::Claim> queue = Queue();
  if (queue.empty()) return;
  scheduler::Cluster cluster(NodeViews());
  scheduler::Pass pass(&cluster);
  for (const scheduler::Claim& claim : queue) {
    JobEntry& job = jobs.at(claim.job);
    if (job.not_before.has_value() && transaction.now.steady < *job.not_before) continue;
    job.not_before.reset();
    if (std::optional<Start> start = FindStart(job, pass, transaction)) {
      pass.Start(claim, start->decision);
      StartGeneration(job, *std::move(start), transaction);
    }
    if (transaction.work_left) schedule_at = transaction.now.steady;  // the rest of the queue
    if (transaction.work_left || pass.Over()) return;
  }
}

// Plans a job only where slots are free for it, and remembers refusals, so a long queue costs nothing. While the plan
// is being made, those slots are reserved against jobs behind it in the queue, and the job keeps them even if better
// ones become free: otherwise a cluster that changes all the time would keep it planning forever. Jobs before it in the
// queue may still take them. If the slots are too small, the job waits for larger ones; a job that may run on fewer
// ranks tries fewer.
std::optional<Core::State::Start> Core::State::FindStart(JobEntry& job, scheduler::Pass& pass,
                                                         Transaction& transaction) {
  using Purpose = Plans::Purpose;
  const JobId id(job.record().id());
  scheduler::Demand demand = DemandOf(job);
  for (int attempt = 0; attempt < kSizesTried; ++attempt) {
    const Plans::Wanted* wanted = plans.Find(id, Purpose::kStart);
    scheduler::Decision decision = pass.Consider(job.claim(), demand, wanted == nullptr ? nullptr : &wanted->decision);
    if (decision.ranks.empty()) {
      plans.Drop(id, Purpose::kStart);
      return std::nullopt;
    }
    if (transaction.Full()) return std::nullopt;
    const PlanState state = PlanOn(job, Purpose::kStart, decision);
    if (state == PlanState::kPending) {
      pass.Start(job.claim(), decision);
      return std::nullopt;
    }
    if (state == PlanState::kFailed) {
      const std::string why(plans.Find(id, Purpose::kStart)->answer->status().message());
      job.machine.Fail(transaction.now);
      Finish(job, transaction, "job.failed", absl::StrCat(id.value(), " cannot run: ", why));
      return std::nullopt;
    }
    if (state == PlanState::kReady) {
      wanted = plans.Find(id, Purpose::kStart);
      return Start{std::move(decision), wanted->slots, **wanted->answer};
    }
    plans.Drop(id, Purpose::kStart);
    if (job.slot_bytes != demand.slot_bytes) {
      demand.slot_bytes = job.slot_bytes;
    } else if (decision.ranks.size() > LeastRanks(job)) {
      demand.ranks = static_cast<uint32_t>(decision.ranks.size()) - 1;
    } else {
      return std::nullopt;
    }
  }
  settled = false;
  return std::nullopt;
}

Core::State::PlanState Core::State::PlanOn(JobEntry& job, Plans::Purpose purpose, const scheduler::Decision& decision) {
  const JobId id(job.record().id());
  const Plans::Wanted* wanted = plans.Find(id, purpose);
  if (wanted == nullptr || !SameSlots(wanted->decision, decision)) {
    Slots slots = SlotsFor(decision);
    if (RefusedOn(job, slots) != nullptr) return PlanState::kRefused;
    wanted = plans.Ask(id, purpose, job.record().spec(), std::move(slots), decision);
  }
  if (!wanted->answer.has_value()) return PlanState::kPending;
  const absl::StatusOr<PlannedPtr>& plan = *wanted->answer;
  if (plan.ok() && !(*plan)->unfit.has_value()) return PlanState::kReady;
  const bool whole = wanted->slots.ranks.size() == job.record().spec().resources().ranks();
  // Submit planned the spec for all its ranks, but a later build may refuse what an earlier build accepted.
  if (!plan.ok() && whole) return PlanState::kFailed;
  Unfit unfit = plan.ok() ? *(*plan)->unfit : Unfit{std::string(plan.status().message()), 0};
  // Fewer ranks need more memory each, so only a refusal for all ranks sets the job's bound.
  if (whole) job.slot_bytes = std::max(job.slot_bytes, unfit.slot_bytes);
  if (RefusedOn(job, wanted->slots) == nullptr) job.refused.push_back({SignatureOf(wanted->slots), std::move(unfit)});
  if (job.refused.size() > kRefusedKept) job.refused.pop_front();
  return PlanState::kRefused;
}

void Core::State::On(const PlanReady& event, Transaction& transaction) {
  for (const auto& [id, purpose] : plans.Answer(event)) {
    JobEntry& job = jobs.at(id);
    switch (purpose) {
      case Plans::Purpose::kStart:
        schedule_at = transaction.now.steady;
        break;
      case Plans::Purpose::kGrowth:
        job.grow_at = transaction.now.steady;
        break;
      case Plans::Purpose::kGeneration:
        TakeGenerationPlan(job, transaction);
        break;
    }
  }
}

// The table is derived from the spec and the slots, so it is not stored. If this build plans a different one, the
// generation keeps its digest: running ranks continue, a rank that starts now refuses, and the next generation uses
// this build's plan.
void Core::State::TakeGenerationPlan(JobEntry& job, Transaction& transaction) {
  const JobId id(job.record().id());
  const absl::StatusOr<PlannedPtr> plan = *plans.Find(id, Plans::Purpose::kGeneration)->answer;
  plans.Drop(id, Plans::Purpose::kGeneration);
  const Generation& generation = job.newest()->record();
  if (plan.ok() && (*plan)->table_sha256 == generation.table_sha256() &&
      (*plan)->digests.at(0) == generation.schedule_digest()) {
    job.plan = *plan;
  } else {
    ChangeDesiredOf(*job.newest(), transaction);
  }
}

scheduler::Demand Core::State::DemandOf(const JobEntry& job) {
  const Resources& resources = job.record().spec().resources();
  scheduler::Demand demand{resources.ranks(), resources.device(), job.slot_bytes};
  if (!job.whole_until.has_value()) demand.least = LeastRanks(job);
  return demand;
}

Slots Core::State::SlotsFor(const scheduler::Decision& decision) const {
  Slots slots{.device = decision.device, .fast_bf16 = true};
  std::map<NodeId, uint32_t> numbers;
  for (const scheduler::RankSlot& rank : decision.ranks) {
    slots.fast_bf16 &= HasFastBf16(nodes.at(rank.node).record().cpu());
    const uint32_t node = numbers.emplace(rank.node, static_cast<uint32_t>(numbers.size())).first->second;
    slots.ranks.push_back({node, rank.memory_bytes});
    const Slot* slot = SlotAt(rank.node, rank.slot);
    if (slot == nullptr) continue;
    slots.ranks.back().flops_per_second = slot->flops_per_second();
    if (slots.ranks.size() == 1) slots.model = slot->model();
  }
  return slots;
}

const Slot* Core::State::SlotAt(const NodeId& node, uint32_t index) const {
  const auto& slots = nodes.at(node).record().slots();
  const auto found = std::find_if(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.index() == index; });
  return found == slots.end() ? nullptr : &*found;
}

const Unfit* Core::State::RefusedOn(const JobEntry& job, const Slots& slots) {
  const std::string signature = SignatureOf(slots);
  for (const JobEntry::Refused& refused : job.refused) {
    if (refused.slots == signature) return &refused.unfit;
  }
  return nullptr;
}

JobSpec SpecOf(const Job& job, const Generation& generation) {
  JobSpec spec = job.spec();
  if (!generation.has_strategy()) return spec;
  *spec.mutable_train()->mutable_strategy() = generation.strategy();
  if (generation.activation_checkpointing()) spec.mutable_train()->set_activation_checkpointing(true);
  return spec;
}

Slots PlacedSlots(const Generation& generation) {
  Slots slots{.device = generation.device()};
  std::map<std::string, uint32_t> numbers;
  for (const RankPlacement& rank : generation.ranks()) {
    const uint32_t node = numbers.emplace(rank.node(), static_cast<uint32_t>(numbers.size())).first->second;
    slots.ranks.push_back({node, rank.memory_bytes(), rank.flops_per_second()});
  }
  return slots;
}

void Core::State::StartGeneration(JobEntry& job, Start start, Transaction& transaction) {
  const JobId id(job.record().id());
  const scheduler::Decision& decision = start.decision;
  const Planned& plan = *start.plan;
  Generation record;
  record.set_job(id.value());
  record.set_number(job.record().generation() + 1);
  record.set_state(GENERATION_STATE_STARTING);
  record.set_device(decision.device);
  *record.mutable_created() = ToProto(transaction.now.wall);
  if (!job.record().checkpoints().empty()) *record.mutable_resume_from() = *job.record().checkpoints().rbegin();
  record.set_resumed_step(record.resume_from().step());
  record.set_table_sha256(plan.table_sha256);
  record.set_schedule_digest(plan.digests.at(0));
  if (plan.strategy.has_value()) {
    *record.mutable_strategy() = *plan.strategy;
    record.set_activation_checkpointing(plan.activation_checkpointing);
    record.set_strategy_reason(plan.strategy_reason);
  }
  for (uint32_t rank = 0; rank < decision.ranks.size(); ++rank) {
    RankPlacement& placement = *record.add_ranks();
    placement.set_rank(rank);
    placement.set_node(decision.ranks[rank].node.value());
    placement.add_slots(decision.ranks[rank].slot);
    *placement.mutable_role() = plan.roles.at(rank);
    placement.set_memory_bytes(start.slots.ranks[rank].memory_bytes);
    placement.set_flops_per_second(start.slots.ranks[rank].flops_per_second);
    placement.set_state(RANK_STATE_STARTING);
  }
  const uint64_t number = record.number();
  GenerationMachine& generation = job.generations.emplace(number, GenerationMachine(std::move(record))).first->second;
  if (job.generations.size() > kGenerationsKept) {
    transaction.deleted_keys.push_back(GenerationKey(id, job.generations.begin()->first));
    job.generations.erase(job.generations.begin());
  }
  job.plan = std::move(start.plan);
  plans.DropAll(id);
  job.refused.clear();
  job.machine.Start(number);
  job.not_before.reset();
  job.highest_step = 0;
  job.step_times.Clear();
  job.progress.clear();
  job.whole_until.reset();
  job.time.Place(generation.record().resumed_step(), transaction.now.steady);
  job.trace.Clear();
  job.traced.clear();
  job.checkpoint_request = 0;
  job.arrived.clear();
  job.start_deadline = transaction.now.steady + TimeoutsOf(job.record()).start;
  const int ranks = generation.record().ranks_size();
  const std::string what = absl::StrCat(
      "generation ", number, ": ", ranks, ranks == 1 ? " rank on " : " ranks on ", Where(generation.record()),
      generation.record().has_resume_from() ? absl::StrCat(", from step ", generation.record().resume_from().step())
                                            : "");
  job.machine.fields().set_reason(absl::StrCat("starting ", what));
  transaction.Touch(id);
  transaction.Touch(id, number);
  ChangeDesiredOf(generation, transaction);
  transaction.AddEvent(&job, number, decision.ranks[0].node.value(), "generation.starting",
                       absl::StrCat(id.value(), " starts as ", what));
  if (const std::string& why = generation.record().strategy_reason(); !why.empty()) {
    transaction.AddEvent(&job, number, "", "generation.strategy", absl::StrCat("strategy auto: ", why));
  }
}

void Core::State::ChangeDesiredOf(const GenerationMachine& generation, Transaction& transaction) {
  for (const RankPlacement& rank : generation.record().ranks()) transaction.ChangeDesired(NodeId(rank.node()));
}

void Core::State::RankReported(JobEntry& job, uint32_t rank, RankState state, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (!generation.Report(rank, state)) return;
  transaction.Touch(JobId(job.record().id()), generation.record().number());
  RunIfAllRanksRun(job, transaction);
}

void Core::State::RunIfAllRanksRun(JobEntry& job, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (generation.state() != GENERATION_STATE_STARTING || !generation.EveryRankRuns()) return;
  const JobId id(job.record().id());
  generation.Run();
  job.machine.Run(transaction.now);
  job.time.Run(transaction.now.steady);
  job.found_room = false;
  if (RunsOnFewer(job)) job.grow_at = transaction.now.steady + options.grow_after;
  job.machine.fields().set_reason(absl::StrCat(
      "generation ", generation.record().number(), " on ", Where(generation.record()),
      RunsOnFewer(job) ? absl::StrCat(", with ", generation.record().ranks_size(), " of ",
                                      job.record().spec().resources().ranks(), " ranks until there are slots for more")
                       : ""));
  job.start_deadline.reset();
  transaction.Touch(id);
  transaction.Touch(id, generation.record().number());
  transaction.AddEvent(&job, generation.record().number(), "", "job.running", absl::StrCat(id.value(), " is running"));
}

// A worker reports EXITED only when the coordinator has acknowledged all records of the rank, so a Finished record is
// here before the exit that follows it.
void Core::State::RankEnded(JobEntry& job, uint32_t number, RankExit exit, EndReason fault, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  const RankPlacement& rank = *generation.rank(number);
  const JobId id(job.record().id());
  const bool stopping = generation.state() == GENERATION_STATE_STOPPING;
  exit = ClassifyExit(std::move(exit), rank);
  const bool faulty = stopping && IsFault(generation.record().reason()) &&
                      job.record().failure().generation() == generation.record().number();
  if (faulty) AddToFault(job, number, exit, transaction);
  RankExit kept = exit;
  kept.clear_last_lines();
  if (generation.record().ranks_size() > kRanksWithMessages) kept.clear_message();
  generation.Exit(number, std::move(kept));
  transaction.Touch(id, generation.record().number());
  transaction.ChangeDesired(NodeId(rank.node()));

  const std::string why = absl::StrCat(exit.message(), " (on ", rank.node(), ")");
  const bool completed = exit.cause() == RankExit::COMPLETED;
  // An orderly exit before the last step that the coordinator did not request: either the worker is leaving and stops
  // its ranks, or another process sent a signal.
  const bool stopped = exit.cause() == RankExit::STOPPED && nodes.at(NodeId(rank.node())).record().leaving();
  // Exits of other ranks after the first fault are its consequences and are not reported as events.
  if (!stopping) transaction.AddEvent(&job, generation.record().number(), rank.node(), "rank.exited", why);
  if (!stopping && !completed && !stopped) {
    Failure& failure = *job.machine.fields().mutable_failure();
    failure.Clear();
    failure.set_generation(generation.record().number());
    failure.set_rank(number);
    failure.set_node(rank.node());
    if (generation.state() == GENERATION_STATE_RUNNING) {
      failure.set_step(std::max(job.highest_step, generation.record().resumed_step()) + 1);
    }
    failure.set_hint(HintFor(exit, id.value(), number));
    *failure.mutable_exit() = exit;
    transaction.Touch(id);
  }
  const EndReason reason = stopped ? END_REASON_DRAINED : fault;
  if (generation.EveryRankExited()) return EndGenerationOf(job, reason, transaction);
  if (!stopping && !completed) return Stop(job, reason, STOP_INTENT_REQUEUE, why, transaction);
  RunIfAllRanksRun(job, transaction);
}

void Core::State::EndGenerationOf(JobEntry& job, EndReason reason, Transaction& transaction) {
  GenerationMachine& generation = *job.newest();
  if (generation.state() == GENERATION_STATE_STOPPING) reason = generation.record().reason();
  if (generation.EveryRankCompleted()) reason = END_REASON_COMPLETED;
  generation.End(reason, transaction.now);
  const JobId id(job.record().id());
  const uint64_t number = generation.record().number();
  transaction.Touch(id, number);
  transaction.Do(EndGeneration{id, number});
  transaction.AddEvent(&job, number, "", "generation.ended",
                       absl::StrCat("generation ", number, " of ", id.value(), " has ended: ", Name(reason)));
  AfterGeneration(job, generation, transaction);
}

void Core::State::On(const RankRecord& event, Transaction& transaction) {
  JobEntry* job = FindJob(event.rank.job);
  if (job == nullptr || job->record().generation() != event.rank.generation || job->newest() == nullptr ||
      job->newest()->ended()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a record of ", event.rank.ToString(), " comes too late: that generation is over"));
    return;
  }
  if (job->newest()->rank(event.rank.rank) == nullptr) {
    transaction.status =
        absl::FailedPreconditionError(absl::StrCat("a record of ", event.rank.ToString(), ": no such rank"));
    return;
  }
  switch (event.record.body_case()) {
    case Record::kRunning:
      Measured(*job->newest()->rank(event.rank.rank), event.record.running().flops_per_second(), transaction);
      if (job->newest()->Resume(event.record.running().resumed_step())) {
        transaction.Touch(event.rank.job, event.rank.generation);
      }
      return RankReported(*job, event.rank.rank, RANK_STATE_RUNNING, transaction);
    case Record::kCheckpoint:
      // Only rank 0 publishes, so ranks cannot disagree.
      if (event.rank.rank != 0) return;
      job->time.Stall(event.record.checkpoint().stall_seconds());
      return Publish(*job, event.record.checkpoint(), transaction);
    case Record::kFinished:
      if (job->newest()->Finish(event.rank.rank)) transaction.Touch(event.rank.job, event.rank.generation);
      if (AdvanceProgress(job->machine.fields(), event.record.finished().step())) transaction.Touch(event.rank.job);
      return;
    case Record::kMetrics:
      return NoteStep(*job, event.record.metrics().step(), transaction);
    case Record::kFailed:  // the worker reports the failure with the exit
    case Record::kTrace:   // handled by the shell
    case Record::BODY_NOT_SET:
      return;
  }
}

// Stores the speed on the slot, for the layouts of later generations of any job.
void Core::State::Measured(const RankPlacement& rank, double flops_per_second, Transaction& transaction) {
  NodeEntry* node = FindNode(NodeId(rank.node()));
  if (node == nullptr || !std::isfinite(flops_per_second) || flops_per_second <= 0) return;
  for (Slot& slot : *node->machine.fields().mutable_slots()) {
    if (std::find(rank.slots().begin(), rank.slots().end(), slot.index()) == rank.slots().end()) continue;
    if (slot.flops_per_second() == flops_per_second) continue;
    slot.set_flops_per_second(flops_per_second);
    transaction.Touch(NodeId(rank.node()));
  }
}

void Core::State::On(const RankArrived& event, Transaction& transaction) {
  transaction.status = CheckCurrent(event.rank);
  if (transaction.status.ok()) jobs.at(event.rank.job).arrived.insert(event.rank.rank);
}

// Compare-and-set: accepts only the current generation, and only later steps.
void Core::State::Publish(JobEntry& job, const CheckpointWritten& written, Transaction& transaction) {
  Job& record = job.machine.fields();
  const std::string& directory = written.directory();
  if (directory.empty() || directory.size() > kDirectoryBytes || directory[0] == '.' ||
      absl::StrContains(directory, '/')) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat("a checkpoint of ", record.id(), " names no folder below checkpoint.path: ", directory));
    return;
  }
  const uint64_t last = record.checkpoints().empty() ? 0 : record.checkpoints().rbegin()->step();
  if (!record.checkpoints().empty() && written.step() <= last) return;
  PublishedCheckpoint& published = *record.add_checkpoints();
  published.set_step(written.step());
  published.set_generation(record.generation());
  published.set_directory(written.directory());
  published.set_samples_consumed(written.samples_consumed());
  *published.mutable_published() = ToProto(transaction.now.wall);
  const size_t keep = std::max(2u, record.spec().train().checkpoint().keep());
  while (static_cast<size_t>(record.checkpoints_size()) > keep) record.mutable_checkpoints()->DeleteSubrange(0, 1);
  AdvanceProgress(record, written.step());
  transaction.Touch(JobId(record.id()));
  ChangeDesiredOf(*job.newest(), transaction);
  transaction.AddEvent(&job, record.generation(), "", "checkpoint.published",
                       absl::StrCat("checkpoint of step ", written.step(), " (", written.directory(), ")"));
}

}  // namespace muster::core
