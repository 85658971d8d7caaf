#include "coordinator/core/core.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/proto_time.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/core/links.h"
#include "coordinator/core/replicas.h"
#include "coordinator/core/state.h"
#include "coordinator/core/topology.h"

namespace muster::core {

Core::Core(std::unique_ptr<State> state) : state_(std::move(state)) {}

Core::~Core() = default;

absl::StatusOr<std::unique_ptr<Core>> Core::Recover(const Options& options, const std::vector<Row>& rows, Now now) {
  auto state = std::make_unique<State>(options);
  if (absl::Status s = state->Recover(rows, now); !s.ok()) return s;
  return std::unique_ptr<Core>(new Core(std::move(state)));
}

Outcome Core::Handle(const Event& event, Now now) {
  Transaction transaction(now);
  state_->queue.Note(now);
  transaction.projects_in_use = state_->projects.any() ? state_->records.projects.size() + 1 : 0;
  std::visit([&](const auto& e) { state_->On(e, transaction); }, event);
  Outcome outcome;
  outcome.status = transaction.status;
  outcome.job = transaction.submitted;
  outcome.sync = std::move(transaction.sync);
  outcome.sync_waits_until = transaction.sync_waits_until;
  if (!transaction.status.ok()) {
    outcome.reason = std::string(transaction.status.message());
    return outcome;
  }
  // Reports and lost nodes free slots, and draining nodes requeue jobs; schedule after both.
  state_->nodes.NoteSeenGenerations(transaction);
  state_->nodes.ForgiveRefusals(transaction);
  state_->nodes.ReadInbox(transaction);
  state_->nodes.JudgeFaults(transaction);
  state_->nodes.Empty(transaction);
  state_->reservations.Advance(transaction);
  state_->queue.ScheduleAfter(event, transaction);
  state_->requests.PruneEnded(transaction);
  state_->exchanges.NoteJobs(transaction);
  // Last, since what follows decides nothing.
  const bool tick = std::holds_alternative<Tick>(event);
  if (tick) state_->jobs.StoreDueTimes(transaction);
  state_->jobs.KeepTimes(transaction);
  if (tick) state_->projects.StoreDecay(transaction);
  state_->more_work = transaction.work_left ? std::optional(now.steady) : std::nullopt;
  outcome.reason = std::move(transaction.reason);
  state_->records.Write(transaction, outcome);
  outcome.events = std::move(transaction.events);
  outcome.actions = std::move(transaction.actions);
  Plans::Requests plans = state_->plans.TakeRequests();
  for (CancelPlan& cancel : plans.cancelled) outcome.actions.emplace_back(std::move(cancel));
  for (RequestPlan& request : plans.requested) outcome.actions.emplace_back(std::move(request));
  for (const NodeId& node : transaction.desired) {
    NodeEntry* entry = state_->records.FindNode(node);
    if (entry == nullptr) continue;
    ++entry->revision;
    outcome.actions.emplace_back(SendDesired{node});
  }
  return outcome;
}

std::optional<SteadyTime> Core::NextTick() const {
  std::optional<SteadyTime> next = state_->more_work;
  const auto consider = [&](const std::optional<SteadyTime>& t) {
    if (t.has_value() && (!next.has_value() || *t < *next)) next = t;
  };
  for (const JobEntry* live : state_->records.Live()) {
    const JobEntry& job = *live;
    if (job.machine.state() == JOB_STATE_QUEUED) {
      consider(state_->queue.schedule_at());
      consider(state_->queue.never_starts_at());
      consider(job.not_before);
      consider(job.whole_until);
    }
    consider(TimeLimits::DueAt(job));
    consider(job.store_times_at);
    if (job.machine.state() == JOB_STATE_RUNNING) consider(job.running->grow_at);
    if (job.machine.state() == JOB_STATE_STARTING) consider(job.running->start_deadline);
    if (job.machine.state() == JOB_STATE_STOPPING) consider(job.running->stop_overdue);
  }
  consider(state_->projects.decay_due());
  consider(state_->reservations.due(state_->queue.now()));
  if (const auto* first = state_->records.FirstEnded();
      first != nullptr && state_->options.keep_ended_for < absl::InfiniteDuration()) {
    consider(first->first + state_->options.keep_ended_for);
  }
  for (const auto& [id, node] : state_->records.nodes) {
    if (node.machine.state() == NODE_STATE_AWAY) consider(node.lost_at);
    if (node.machine.state() == NODE_STATE_LOST) consider(node.forget_at);
  }
  return next;
}

namespace {

// Where jobs have just this name, only these: not "b-large-..." for "b".
std::vector<const JobEntry*> JobsWithPrefix(const Records& records, const std::string& prefix) {
  std::vector<const JobEntry*> found, named;
  for (auto it = records.jobs.lower_bound(JobId(prefix)); it != records.jobs.end(); ++it) {
    if (!absl::StartsWith(it->first.value(), prefix)) break;
    found.push_back(&it->second);
    if (it->second.record().spec().name() == prefix) named.push_back(&it->second);
  }
  return named.empty() ? found : named;
}

absl::Status Ambiguous(const std::string& prefix, const std::vector<const JobEntry*>& found) {
  const size_t shown = std::min<size_t>(found.size(), 5);
  const auto name = [](std::string* to, const JobEntry* job) { absl::StrAppend(to, job->record().id()); };
  return absl::FailedPreconditionError(
      absl::StrCat(prefix, " matches ", found.size(),
                   " jobs: ", absl::StrJoin(found.begin(), found.begin() + static_cast<ptrdiff_t>(shown), ", ", name),
                   found.size() > shown ? ", …" : "", ": name one of them"));
}

}  // namespace

absl::StatusOr<JobId> Core::Find(const std::string& id_or_prefix) const {
  if (id_or_prefix.empty()) return absl::InvalidArgumentError("the name of the job is empty");
  if (state_->records.jobs.contains(JobId(id_or_prefix))) return JobId(id_or_prefix);
  const std::vector<const JobEntry*> found = JobsWithPrefix(state_->records, id_or_prefix);
  if (found.size() == 1) return found[0]->id();
  if (found.empty()) return absl::NotFoundError(absl::StrCat("no job ", id_or_prefix, "; see: muster ps -a"));
  return Ambiguous(id_or_prefix, found);
}

absl::StatusOr<std::vector<JobId>> Core::FindReplicas(const std::string& id_or_prefix, Among among) const {
  const absl::StatusOr<JobId> one = Find(id_or_prefix);
  if (one.ok()) return std::vector<JobId>{*one};
  if (!absl::IsFailedPrecondition(one.status())) return one.status();
  std::vector<JobId> replicas;
  std::vector<const JobEntry*> found = JobsWithPrefix(state_->records, id_or_prefix);
  bool none_live = among == Among::kLive;
  if (among != Among::kAll) {
    std::vector<const JobEntry*> meant;
    for (const JobEntry* job : found) {
      if (job->machine.ended() == (among == Among::kEnded)) meant.push_back(job);
    }
    if (meant.size() == 1) return std::vector<JobId>{meant[0]->id()};
    none_live = none_live && meant.empty();
    if (!meant.empty()) found = std::move(meant);
  }
  const std::string& run = found[0]->record().spec().train().sync().run();
  for (const JobEntry* job : found) {
    if (!absl::StartsWith(run, id_or_prefix) || job->record().spec().train().sync().run() != run) {
      if (!none_live) return Ambiguous(id_or_prefix, found);
      return absl::FailedPreconditionError(absl::StrCat("no running or queued job begins with ", id_or_prefix));
    }
    replicas.push_back(job->id());
  }
  return replicas;
}

const Job* Core::Stored(const JobId& job) const {
  const JobEntry* entry = state_->records.FindJob(job);
  return entry == nullptr ? nullptr : &entry->record();
}

namespace {

// What runs on, up to `at`.
void ShowTimes(const JobEntry& job, SteadyTime at, Job& view) {
  *view.mutable_time_breakdown() = job.time.UpTo(at);
  if (!job.running.has_value()) return;
  const double held = absl::ToDoubleSeconds(at - job.running->held_since);
  view.set_held_seconds(view.held_seconds() + held);
  view.set_slot_seconds(view.slot_seconds() + held * static_cast<double>(Records::SlotsHeldBy(job)));
}

}  // namespace

absl::StatusOr<Job> Core::GetJob(const JobId& job, std::optional<SteadyTime> at) const {
  const JobEntry* entry = state_->records.FindJob(job);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job.value()));
  Job view = state_->views.Of(*entry);
  if (at.has_value()) ShowTimes(*entry, *at, view);
  return view;
}

std::vector<Job> Core::ListJobs(bool ended_too) const {
  return ListJobs(ended_too, "", std::numeric_limits<size_t>::max(), std::numeric_limits<size_t>::max())->jobs;
}

// A page begins with the n-th of the jobs that have not ended, "n7", or with the ended ones below a sequence number,
// "e1234".
absl::StatusOr<Core::JobPage> Core::ListJobs(bool ended_too, const std::string& page, size_t rows, size_t bytes,
                                             std::optional<SteadyTime> at,
                                             const std::function<bool(const Job&)>& selected) const {
  uint64_t from = 0;
  const bool ended_only = absl::StartsWith(page, "e");
  if (!page.empty() && ((page[0] != 'n' && page[0] != 'e') || !absl::SimpleAtoi(page.substr(1), &from))) {
    return absl::InvalidArgumentError(absl::StrCat("page: \"", page, "\" is not from an earlier reply"));
  }
  JobPage result;
  size_t used = 0, looked = 0;
  const auto add = [&](Job job) {
    used += job.ByteSizeLong();
    result.jobs.push_back(std::move(job));
  };
  // At least one, however large it is.
  const auto full = [&] {
    return result.jobs.size() >= rows || (!result.jobs.empty() && used >= bytes) || looked >= kLookedAtOnce;
  };
  const auto wanted = [&](const Job& job) {
    if (selected == nullptr) return true;
    ++looked;
    return selected(job);
  };
  if (!ended_only) {
    std::vector<const JobEntry*> active;
    for (const JobEntry* job : state_->records.Live()) {
      if (job->machine.state() != JOB_STATE_QUEUED) active.push_back(job);
    }
    std::sort(active.begin(), active.end(),
              [](const JobEntry* a, const JobEntry* b) { return a->record().sequence() < b->record().sequence(); });
    std::vector<Queue::Waiting> queued = state_->queue.WaitingJobs();
    const size_t all = active.size() + queued.size();
    for (size_t i = from; i < all; ++i) {
      if (full()) {
        result.next = absl::StrCat("n", i);
        return result;
      }
      if (i < active.size()) {
        if (!wanted(active[i]->record())) continue;
        Job job = active[i]->record();
        if (at.has_value()) ShowTimes(*active[i], *at, job);
        add(std::move(job));
        continue;
      }
      Queue::Waiting& waiting = queued[i - active.size()];
      if (!wanted(state_->records.jobs.at(waiting.job).record())) continue;
      Job job = state_->records.jobs.at(waiting.job).record();
      job.set_reason(std::move(waiting.reason));
      job.set_queue_position(waiting.position);
      if (waiting.starts_by.has_value()) *job.mutable_predicted_start() = ToProto(*waiting.starts_by);
      add(std::move(job));
    }
    from = 0;
  }
  if (!ended_too) return result;
  uint64_t last = from;
  state_->records.ForEnded(from, [&](const JobEntry& job) {
    if (full()) {
      result.next = absl::StrCat("e", last == 0 ? job.record().sequence() + 1 : last);
      return false;
    }
    last = job.record().sequence();
    if (wanted(job.record())) add(job.record());
    return true;
  });
  return result;
}

std::map<JobState, uint64_t> Core::CountJobs() const {
  std::map<JobState, uint64_t> counts;
  for (const auto& [id, job] : state_->records.jobs) ++counts[job.machine.state()];
  return counts;
}

std::vector<JobId> Core::EndedJobs() const {
  std::vector<JobId> ended;
  state_->records.ForEnded(0, [&](const JobEntry& job) {
    ended.push_back(job.id());
    return true;
  });
  std::reverse(ended.begin(), ended.end());
  return ended;
}

std::vector<Generation> Core::ListGenerations(const JobId& job, size_t most) const {
  std::vector<Generation> all;
  if (const JobEntry* entry = state_->records.FindJob(job)) {
    for (auto it = entry->generations.rbegin(); it != entry->generations.rend() && all.size() < most; ++it)
      all.push_back(it->second.record());
  }
  return all;
}

std::vector<RankProgress> Core::ListProgress(const JobId& job) const {
  const JobEntry* entry = state_->records.FindJob(job);
  return entry == nullptr ? std::vector<RankProgress>() : state_->views.ProgressOf(*entry);
}

std::vector<Project> Core::ListProjects() const { return state_->projects.List(state_->queue.now().steady); }

std::vector<Reservation> Core::ListReservations() const { return state_->reservations.List(state_->queue.now()); }

std::vector<Template> Core::ListTemplates() const {
  std::vector<Template> all;
  for (const auto& [name, record] : state_->records.templates) {
    Template& shown = all.emplace_back();
    shown.set_name(name);
    shown.set_owner(record.owner());
    *shown.mutable_changed() = record.changed();
  }
  return all;
}

const Template* Core::FindTemplate(const std::string& name) const {
  const auto found = state_->records.templates.find(name);
  return found == state_->records.templates.end() ? nullptr : &found->second;
}

std::vector<Node> Core::ListNodes() const {
  std::vector<Node> all;
  const Records::Holders holders = state_->records.SlotHolders();
  for (const auto& [id, node] : state_->records.nodes) all.push_back(state_->views.Of(node, holders));
  return all;
}

std::vector<NodeLink> Core::ListLinks(const JobId& job) const {
  const JobEntry* entry = state_->records.FindJob(job);
  if (entry == nullptr || entry->newest() == nullptr) return {};
  return LinksOf(state_->records, entry->newest()->record());
}

size_t Core::EntriesOfExchanges() const { return EntriesOf(state_->records); }

absl::StatusOr<Node> Core::GetNode(const NodeId& node) const {
  const NodeEntry* entry = state_->records.FindNode(node);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no node ", node.value(), "; muster nodes lists them"));
  return state_->views.Of(*entry, state_->records.SlotHolders());
}

std::optional<Cpu> Core::CpuOf(const NodeId& node) const {
  const NodeEntry* entry = state_->records.FindNode(node);
  return entry == nullptr ? std::nullopt : std::optional(entry->record().cpu());
}

Desired Core::DesiredFor(const NodeId& node) const { return state_->views.DesiredFor(node); }

bool Core::HasReported(const NodeId& node) const {
  const NodeEntry* entry = state_->records.FindNode(node);
  return entry != nullptr && entry->reported;
}

std::string Core::FolderConflict(const JobSpec& resolved) const {
  // With an id of its own in the path no other job has it.
  if (absl::StrContains(resolved.train().checkpoint().path(), "{job}")) return "";
  JobSpec spec = ReplicasOf(resolved) == 1 ? resolved : SpecOfReplica(resolved, "", 0);
  ExpandPlaceholders(JobId(), spec);
  return state_->records.FolderConflict(spec);
}

Core::Placing Core::WouldPlace(const JobSpec& resolved, uint64_t slot_bytes, bool whole) const {
  std::vector<scheduler::NodeView> nodes = state_->queue.NodeViewsWithoutClaims();
  scheduler::Demand demand{resolved.resources().ranks(), resolved.resources().device()};
  demand.slot_bytes = slot_bytes;
  demand.multiple = LeastGroupOf(resolved);
  demand.together = TensorRanksOf(resolved);
  demand.context = ContextRanksOf(resolved);
  if (!whole) demand.least = resolved.resources().min_ranks();
  Select(resolved.resources(), state_->records, demand);
  const absl::Duration ends_in = TimeLimitOf(resolved) + state_->generations.StopDeadline(resolved, END_REASON_TIMEOUT);
  KeepOffReserved(resolved.resources().reservation(), ends_in, state_->queue.now().wall, state_->records, demand);
  scheduler::Decision now = scheduler::Cluster(nodes).Place(demand);
  if (const std::string why =
          BeginsLater(resolved.resources().reservation(), state_->queue.now().wall, state_->records);
      !why.empty()) {
    now.ranks.clear();
    now.reason = why;
  }
  scheduler::Decision later = now;
  if (now.ranks.empty()) {
    demand.closed.clear();
    for (scheduler::NodeView& node : nodes) {  // as if all were idle
      if (node.availability == scheduler::Availability::kAway) node.availability = scheduler::Availability::kTakesRanks;
      for (scheduler::SlotView& slot : node.slots) slot.holder = {}, slot.stuck = false;
    }
    later = scheduler::Cluster(nodes).Place(demand);
  }
  Placing placing{.nodes = {}, .slots = state_->queue.SlotsFor(later), .reason = now.reason, .domains = {}};
  std::set<std::string> nodes_of_ranks;
  for (const scheduler::RankSlot& rank : now.ranks) {
    placing.nodes.push_back(rank.node);
    nodes_of_ranks.insert(rank.node.value());
  }
  if (!now.ranks.empty()) placing.domains = DomainsOf(resolved.resources(), state_->records, nodes_of_ranks);
  return placing;
}

Core::RankStatus Core::StatusOf(const RankId& rank, const NodeId& node) const {
  const JobEntry* job = state_->records.FindJob(rank.job);
  if (job == nullptr) return RankStatus::kNone;
  const auto generation = job->generations.find(rank.generation);
  if (generation == job->generations.end()) return RankStatus::kNone;
  const RankPlacement* placement = generation->second.rank(rank.rank);
  if (placement == nullptr || placement->node() != node.value()) return RankStatus::kNone;
  return job->record().generation() == rank.generation ? RankStatus::kCurrent : RankStatus::kPast;
}

bool Core::IsCurrent(const JobId& job, uint64_t generation) const {
  const JobEntry* entry = state_->records.FindJob(job);
  return entry != nullptr && entry->record().generation() == generation && entry->running.has_value();
}

absl::Status Core::CheckCurrent(const RankId& rank) const { return state_->generations.CheckCurrent(rank); }

uint64_t Core::HighestStep(const JobId& id) const {
  const JobEntry* job = state_->records.FindJob(id);
  return job == nullptr || !job->running.has_value() ? 0 : job->running->highest_step;
}

bool Core::HasArrived(const RankId& rank) const {
  const JobEntry* job = state_->records.FindJob(rank.job);
  return job != nullptr && job->record().generation() == rank.generation && job->running.has_value() &&
         job->running->arrived.contains(rank.rank);
}

const Planned* Core::PlanOf(const JobId& id) const {
  const JobEntry* job = state_->records.FindJob(id);
  return job == nullptr || !job->running.has_value() ? nullptr : job->running->plan.get();
}

bool Core::IsPlanPending(const JobId& id) const {
  return state_->plans.Find(id, Plans::Purpose::kGeneration) != nullptr;
}

std::string Core::Missing(const JobId& id) const {
  const JobEntry* job = state_->records.FindJob(id);
  return job == nullptr ? "" : Generations::NamesOfMissing(*job);
}

absl::Status Core::State::Recover(const std::vector<Row>& rows, Now now) {
  if (absl::Status s = records.Load(rows, now.steady); !s.ok()) return s;
  queue.Note(now);
  bool work_left = nodes.Recover(now);
  std::vector<const JobEntry*> ended;
  for (auto& [id, job] : records.jobs) {
    jobs.Recover(job, now);
    if (job.machine.ended()) ended.push_back(&job);
    if (!job.machine.active()) continue;
    generations.Recover(job, now);
    work_left = true;  // a tick takes the request for its plan along
  }
  std::sort(ended.begin(), ended.end(), [](const JobEntry* a, const JobEntry* b) {
    return std::pair(FromProto(a->record().ended()), a->record().sequence()) <
           std::pair(FromProto(b->record().ended()), b->record().sequence());
  });
  for (const JobEntry* job : ended) records.NoteEnd(job->id(), now.steady);
  work_left |= records.ended_jobs() > options.max_ended_jobs;
  if (work_left) more_work = now.steady;
  return absl::OkStatus();
}

void Core::State::On(const PlanReady& event, Transaction& transaction) {
  for (const auto& [id, purpose] : plans.Answer(event)) {
    JobEntry& job = records.jobs.at(id);
    switch (purpose) {
      case Plans::Purpose::kStart:
        queue.ScheduleSoon(transaction.now.steady);
        break;
      case Plans::Purpose::kGrowth:
        job.running->grow_at = transaction.now.steady;
        break;
      case Plans::Purpose::kGeneration:
        generations.TakePlan(job, transaction);
        break;
    }
  }
}

// All in one transaction, however many: once, and before any worker is connected.
void Core::State::On(const StoreRestored&, Transaction& transaction) {
  for (JobEntry* job : records.Live()) {
    records.SkipNumbers(*job, NewestNumber(job->record()) + options.numbers_skipped, transaction);
  }
  exchanges.SkipNumbers(transaction);
  transaction.AddEvent(
      nullptr, 0, "", "store.restored",
      absl::StrCat(
          "this store was restored from a backup: changes made after it are lost; generations and exchanges of "
          "replicas skip ",
          options.numbers_skipped, " numbers, so that none is used twice"));
}

void Core::State::On(const Tick&, Transaction& transaction) {
  const auto due = [&](std::optional<SteadyTime>& timer) {
    if (!timer.has_value() || transaction.now.steady < *timer || transaction.Full()) return false;
    timer.reset();
    return true;
  };
  nodes.CheckAway(transaction);
  nodes.ForgetLost(transaction);
  for (JobEntry* live : records.Live()) {
    JobEntry& job = *live;
    if (std::optional<SteadyTime> limit = TimeLimits::DueAt(job); due(limit)) time_limits.Check(job, transaction);
    if (job.machine.state() == JOB_STATE_STARTING && due(job.running->start_deadline)) {
      generations.CheckStart(job, transaction);
    }
    if (job.machine.state() == JOB_STATE_STOPPING && due(job.running->stop_overdue)) {
      generations.CheckStop(job, transaction);
    }
    if (job.machine.state() == JOB_STATE_RUNNING && due(job.running->grow_at)) growth.Check(job, transaction);
    if (job.whole_until.has_value() && *job.whole_until <= transaction.now.steady) job.whole_until.reset();
    // The scheduling pass runs next and starts those that it can.
    if (job.not_before.has_value() && *job.not_before <= transaction.now.steady) job.not_before.reset();
  }
}

}  // namespace muster::core
