#include "coordinator/core/core.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/proto_time.h"
#include "coordinator/core/job_paths.h"
#include "coordinator/core/state.h"

namespace muster::core {

void Transaction::AddEvent(const JobEntry* job, uint64_t generation, const std::string& node, const std::string& kind,
                           const std::string& message) {
  StateEvent& event = events.emplace_back();
  *event.mutable_time() = ToProto(now.wall);
  if (job != nullptr) {
    event.set_job(job->record().id());
    event.set_job_state(job->record().state());
  }
  event.set_generation(generation);
  event.set_node(node);
  event.set_kind(kind);
  event.set_message(message);
  reason = reason.empty() ? message : absl::StrCat(reason, "; ", message);
}

Core::Core(std::unique_ptr<State> state) : state_(std::move(state)) {}

Core::~Core() = default;

absl::StatusOr<std::unique_ptr<Core>> Core::Recover(const Options& options, const std::vector<Row>& rows, Now now) {
  auto state = std::make_unique<State>(options);
  if (absl::Status s = state->Load(rows, now); !s.ok()) return s;
  return std::unique_ptr<Core>(new Core(std::move(state)));
}

Outcome Core::Handle(const Event& event, Now now) {
  Transaction transaction(now);
  std::visit([&](const auto& e) { state_->On(e, transaction); }, event);
  Outcome outcome;
  outcome.status = transaction.status;
  outcome.job = transaction.submitted;
  if (!transaction.status.ok()) {
    outcome.reason = std::string(transaction.status.message());
    return outcome;
  }
  // Reports and lost nodes free slots, and draining nodes requeue jobs; schedule after both.
  state_->ReadInbox(transaction);
  state_->EmptyNodes(transaction);
  state_->ScheduleFor(event, transaction);
  state_->KeepTimeBreakdowns(transaction);
  state_->more_work = transaction.work_left ? std::optional(now.steady) : std::nullopt;
  outcome.reason = std::move(transaction.reason);
  state_->Write(transaction, outcome);
  outcome.events = std::move(transaction.events);
  outcome.actions = std::move(transaction.actions);
  Plans::Requests plans = state_->plans.TakeRequests();
  for (CancelPlan& cancel : plans.cancelled) outcome.actions.push_back(std::move(cancel));
  for (RequestPlan& request : plans.requested) outcome.actions.push_back(std::move(request));
  for (const NodeId& node : transaction.desired) {
    NodeEntry* entry = state_->FindNode(node);
    if (entry == nullptr) continue;
    ++entry->revision;
    outcome.actions.push_back(SendDesired{node});
  }
  return outcome;
}

std::optional<SteadyTime> Core::NextTick() const {
  std::optional<SteadyTime> next = state_->more_work;
  const auto consider = [&](const std::optional<SteadyTime>& t) {
    if (t.has_value() && (!next.has_value() || *t < *next)) next = t;
  };
  for (const auto& [id, job] : state_->jobs) {
    if (job.machine.state() == JOB_STATE_QUEUED) {
      consider(state_->schedule_at);
      consider(job.not_before);
      consider(job.whole_until);
    }
    if (job.machine.state() == JOB_STATE_RUNNING) consider(job.grow_at);
    if (job.machine.state() == JOB_STATE_STARTING) consider(job.start_deadline);
    if (job.machine.state() == JOB_STATE_STOPPING) consider(job.stop_overdue);
  }
  for (const auto& [id, node] : state_->nodes) {
    if (node.machine.state() == NODE_STATE_AWAY) consider(node.lost_at);
  }
  return next;
}

absl::StatusOr<JobId> Core::Find(const std::string& id_or_prefix) const {
  const auto& jobs = state_->jobs;
  if (id_or_prefix.empty()) return absl::InvalidArgumentError("no job named");
  if (jobs.contains(JobId(id_or_prefix))) return JobId(id_or_prefix);
  std::vector<std::string> found;
  for (auto it = jobs.lower_bound(JobId(id_or_prefix)); it != jobs.end(); ++it) {
    if (!absl::StartsWith(it->first.value(), id_or_prefix)) break;
    found.push_back(it->first.value());
  }
  if (found.size() == 1) return JobId(found[0]);
  if (found.empty()) return absl::NotFoundError(absl::StrCat("no job ", id_or_prefix, "; muster ps -a lists them"));
  const size_t shown = std::min<size_t>(found.size(), 5);
  return absl::FailedPreconditionError(
      absl::StrCat(id_or_prefix, " fits ", found.size(),
                   " jobs: ", absl::StrJoin(found.begin(), found.begin() + static_cast<ptrdiff_t>(shown), ", "),
                   found.size() > shown ? ", …" : ""));
}

const Job* Core::Stored(const JobId& job) const {
  const JobEntry* entry = state_->FindJob(job);
  return entry == nullptr ? nullptr : &entry->record();
}

absl::StatusOr<Job> Core::GetJob(const JobId& job, std::optional<SteadyTime> at) const {
  const JobEntry* entry = state_->FindJob(job);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no job ", job.value()));
  Job view = state_->View(*entry);
  if (at.has_value()) *view.mutable_time_breakdown() = entry->time.UpTo(*at);
  return view;
}

std::vector<Job> Core::ListJobs(bool ended_too) const {
  std::vector<Job> active, queued, ended;
  for (const auto& [id, job] : state_->jobs) {
    if (job.machine.ended()) {
      if (ended_too) ended.push_back(job.record());
    } else if (job.machine.state() == JOB_STATE_QUEUED || job.machine.state() == JOB_STATE_PAUSED) {
      if (job.machine.state() == JOB_STATE_PAUSED) active.push_back(job.record());
    } else {
      active.push_back(job.record());
    }
  }
  for (State::Waiting& waiting : state_->WaitingJobs()) {
    Job& job = queued.emplace_back(state_->jobs.at(waiting.job).record());
    job.set_reason(std::move(waiting.reason));
    job.set_queue_position(waiting.position);
  }
  const auto by_sequence = [](const Job& a, const Job& b) { return a.sequence() < b.sequence(); };
  std::sort(active.begin(), active.end(), by_sequence);
  std::sort(ended.rbegin(), ended.rend(), by_sequence);
  active.insert(active.end(), queued.begin(), queued.end());
  active.insert(active.end(), ended.begin(), ended.end());
  return active;
}

std::vector<Generation> Core::ListGenerations(const JobId& job) const {
  std::vector<Generation> all;
  if (const JobEntry* entry = state_->FindJob(job)) {
    for (auto it = entry->generations.rbegin(); it != entry->generations.rend(); ++it)
      all.push_back(it->second.record());
  }
  return all;
}

std::vector<Node> Core::ListNodes() const {
  std::vector<Node> all;
  const State::Holders holders = state_->SlotHolders();
  for (const auto& [id, node] : state_->nodes) all.push_back(state_->View(node, holders));
  return all;
}

absl::StatusOr<Node> Core::GetNode(const NodeId& node) const {
  const NodeEntry* entry = state_->FindNode(node);
  if (entry == nullptr) return absl::NotFoundError(absl::StrCat("no node ", node.value(), "; muster nodes lists them"));
  return state_->View(*entry, state_->SlotHolders());
}

Desired Core::DesiredFor(const NodeId& node) const { return state_->DesiredFor(node); }

bool Core::HasReported(const NodeId& node) const {
  const NodeEntry* entry = state_->FindNode(node);
  return entry != nullptr && entry->reported;
}

std::string Core::FolderConflict(const JobSpec& resolved) const {
  // With an id of its own in the path no other job has it.
  if (absl::StrContains(resolved.train().checkpoint().path(), "{job}")) return "";
  JobSpec spec = resolved;
  ExpandPlaceholders(JobId(), spec);
  return state_->FolderConflict(spec);
}

Core::Placing Core::WouldPlace(const JobSpec& resolved, uint64_t slot_bytes, bool whole) const {
  const std::vector<scheduler::NodeView> views = state_->NodeViews();
  std::vector<scheduler::NodeView> idle = views;
  for (scheduler::NodeView& node : idle) {
    if (node.availability == scheduler::Availability::kAway) node.availability = scheduler::Availability::kTakesRanks;
    for (scheduler::SlotView& slot : node.slots) slot.holder = {};
  }
  scheduler::Demand demand{resolved.resources().ranks(), resolved.resources().device()};
  demand.slot_bytes = slot_bytes;
  if (!whole) demand.least = resolved.resources().min_ranks();
  const scheduler::Decision now = scheduler::Cluster(views).Place(demand);
  const scheduler::Decision later = now.ranks.empty() ? scheduler::Cluster(idle).Place(demand) : now;
  Placing placing{.nodes = {}, .slots = state_->SlotsFor(later), .reason = now.reason};
  for (const scheduler::RankSlot& rank : now.ranks) placing.nodes.push_back(rank.node);
  return placing;
}

Core::RankStatus Core::StatusOf(const RankId& rank, const NodeId& node) const {
  const auto job = state_->jobs.find(rank.job);
  if (job == state_->jobs.end()) return RankStatus::kNone;
  const auto generation = job->second.generations.find(rank.generation);
  if (generation == job->second.generations.end()) return RankStatus::kNone;
  const RankPlacement* placement = generation->second.rank(rank.rank);
  if (placement == nullptr || placement->node() != node.value()) return RankStatus::kNone;
  return job->second.record().generation() == rank.generation ? RankStatus::kCurrent : RankStatus::kPast;
}

bool Core::IsCurrent(const JobId& job, uint64_t generation) const {
  const JobEntry* entry = state_->FindJob(job);
  return entry != nullptr && entry->record().generation() == generation && entry->newest() != nullptr &&
         !entry->newest()->ended();
}

absl::Status Core::CheckCurrent(const RankId& rank) const { return state_->CheckCurrent(rank); }

bool Core::HasArrived(const RankId& rank) const {
  const JobEntry* job = state_->FindJob(rank.job);
  return job != nullptr && job->record().generation() == rank.generation && job->arrived.contains(rank.rank);
}

const Planned* Core::PlanOf(const JobId& id) const {
  const JobEntry* job = state_->FindJob(id);
  return job == nullptr ? nullptr : job->plan.get();
}

bool Core::IsPlanPending(const JobId& id) const {
  return state_->plans.Find(id, Plans::Purpose::kGeneration) != nullptr;
}

std::string Core::Missing(const JobId& id) const {
  const JobEntry* job = state_->FindJob(id);
  return job == nullptr ? "" : State::NamesOfMissing(*job);
}

JobEntry* Core::State::FindJob(const JobId& id) {
  const auto found = jobs.find(id);
  return found == jobs.end() ? nullptr : &found->second;
}

NodeEntry* Core::State::FindNode(const NodeId& id) {
  const auto found = nodes.find(id);
  return found == nodes.end() ? nullptr : &found->second;
}

JobEntry* Core::State::NeedJob(const JobId& id, Transaction& transaction) {
  JobEntry* job = FindJob(id);
  if (job == nullptr) transaction.status = absl::NotFoundError(absl::StrCat("no job ", id.value()));
  return job;
}

NodeEntry* Core::State::NeedNode(const NodeId& id, Transaction& transaction) {
  NodeEntry* node = FindNode(id);
  if (node == nullptr) {
    transaction.status = absl::NotFoundError(absl::StrCat("no node ", id.value(), "; muster nodes lists them"));
  }
  return node;
}

}  // namespace muster::core
