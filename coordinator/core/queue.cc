#include "coordinator/core/queue.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"
#include "coordinator/core/links.h"
#include "coordinator/core/reservations.h"
#include "coordinator/core/topology.h"

namespace muster::core {
namespace {

constexpr size_t kRefusedKept = 16;

bool SameSlots(const scheduler::Decision& a, const scheduler::Decision& b) {
  const auto same = [](const scheduler::RankSlot& x, const scheduler::RankSlot& y) {
    return x.node == y.node && x.slot == y.slot && x.memory_bytes == y.memory_bytes;
  };
  return a.device == b.device && std::equal(a.ranks.begin(), a.ranks.end(), b.ranks.begin(), b.ranks.end(), same);
}

// Why the planner refused the job on these slots; null: it did not.
const Unfit* RefusedOn(const JobEntry& job, const Slots& slots) {
  const std::string signature = SignatureOf(slots);
  for (const JobEntry::Refused& refused : job.refused) {
    if (refused.slots == signature) return &refused.unfit;
  }
  return nullptr;
}

void Reserve(const scheduler::Claim& claim, const scheduler::Decision& decision,
             std::vector<scheduler::NodeView>& nodes) {
  for (const scheduler::RankSlot& rank : decision.ranks) {
    for (scheduler::NodeView& node : nodes) {
      if (node.id != rank.node) continue;
      for (scheduler::SlotView& slot : node.slots) {
        if (slot.index == rank.slot) slot.holder = claim;
      }
    }
  }
}

// A job that may run on fewer ranks starts on as many as the room allows.
void Limit(uint64_t room, scheduler::Demand& demand) {
  if (room < demand.ranks) demand.ranks = static_cast<uint32_t>(room - room % demand.multiple);
}

std::string Ordinal(uint64_t n) {
  const char* suffix = n % 100 >= 11 && n % 100 <= 13 ? "th"
                       : n % 10 == 1                  ? "st"
                       : n % 10 == 2                  ? "nd"
                       : n % 10 == 3                  ? "rd"
                                                      : "th";
  return absl::StrCat(n, suffix);
}

// For the end of the reason of a job that can never start: why slots were refused, or what would fit.
std::string OfRefusal(const JobEntry& job) {
  if (job.refused.empty()) return "";
  const Unfit& unfit = job.refused.back().unfit;
  // Where slots have a least size, the scheduler's reason has the numbers.
  const bool numbers = unfit.slot_bytes == 0 || unfit.advice.empty();
  return numbers ? absl::StrCat(": ", unfit.why) : absl::StrCat("; ", unfit.advice);
}

}  // namespace

Queue::ClaimsOfJobs Queue::Claims() const {
  ClaimsOfJobs claims;
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    const Job& record = job->record();
    JobId id = job->id();
    claims.try_emplace(
        claims.end(), id,
        scheduler::Claim{id, record.spec().priority(), record.sequence(), EndsIn(*job)});  // in the order of ids
  }
  if (projects_->any()) projects_->SetLoads(claims, AutoDevice(), now_.steady);
  return claims;
}

absl::Duration Queue::EndsIn(const JobEntry& job) const {
  return core::EndsIn(job, *limits_, *generations_, *records_, now_);
}

size_t Queue::WindowsOf(const JobEntry& job) const { return WindowsWithin(EndsIn(job), now_.wall, *records_); }

Device Queue::AutoDevice() const {
  for (const auto& [id, node] : records_->nodes) {
    if (node.machine.state() == NODE_STATE_LOST || node.record().draining() || node.record().leaving()) continue;
    const auto& slots = node.record().slots();
    if (std::any_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.device() == DEVICE_CUDA; })) {
      return DEVICE_CUDA;
    }
  }
  return DEVICE_CPU;
}

std::vector<scheduler::Claim> Queue::InOrder(const ClaimsOfJobs& claims) const {
  std::vector<scheduler::Claim> waiting;
  auto at = claims.begin();  // one for each live job, in the same order
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    if (job->machine.state() == JOB_STATE_QUEUED) waiting.push_back(at->second);
    ++at;
  }
  scheduler::SortQueue(waiting);
  return waiting;
}

Queue::RunningRanks Queue::RanksOfUsers() const {
  RunningRanks running;
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    const GenerationMachine* generation = job->newest();
    if (generation == nullptr || generation->ended()) continue;
    const auto ranks = static_cast<uint64_t>(generation->record().ranks_size());
    running[job->record().owner()][ProjectOf(job->record())] += ranks;
  }
  return running;
}

Queue::UsersRoom Queue::RoomOfUser(const JobEntry& job, const RunningRanks& running) const {
  const std::string project = ProjectOf(job.record());
  const uint32_t most = options_->max_running_ranks_of_user, most_here = projects_->MostRanksOfUser(project);
  UsersRoom room;
  if (most == 0 && most_here == 0) return room;
  uint64_t all = 0, here = 0;
  if (const auto own = running.find(job.record().owner()); own != running.end()) {
    for (const auto& [of, ranks] : own->second) {
      all += ranks;
      if (of == project) here = ranks;
    }
  }
  const auto keep_within = [&room](uint32_t limit, uint64_t held, const std::string& where) {
    const uint64_t left = limit - std::min<uint64_t>(limit, held);
    if (limit > 0 && left < room.ranks) room = {left, limit, where};
  };
  keep_within(most, all, "");
  keep_within(most_here, here, " in project " + project);
  return room;
}

Queue::Taken Queue::TakenOf(const ClaimsOfJobs& claims) const {
  Taken taken{scheduler::QuotaPass(projects_->EmptyQuotas()), RanksOfUsers()};
  if (taken.quotas.quotas().empty()) return taken;
  for (const auto& [id, claim] : claims) {
    const JobEntry& job = records_->jobs.at(id);
    const uint64_t slots = Records::SlotsHeldBy(job);
    if (slots > 0) taken.quotas.Run(ProjectOf(job.record()), job.newest()->record().device(), claim, slots);
  }
  return taken;
}

void Queue::Taken::Start(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Decision& decision) {
  const std::string project = ProjectOf(job.record());
  quotas.Run(project, decision.device, claim, decision.ranks.size());
  ranks[job.record().owner()][project] += decision.ranks.size();
}

bool Queue::HasRoom(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Cluster& cluster,
                    scheduler::QuotaPass& quotas, scheduler::Demand& demand) {
  if (quotas.quotas().empty()) return true;
  const uint64_t room = quotas.Consider(ProjectOf(job.record()), cluster.Resolve(demand.device), claim, demand.needed(),
                                        cluster.IdleFrom(demand));
  if (room < demand.needed()) return false;
  Limit(room, demand);
  return true;
}

uint64_t Queue::MostRanks(const JobEntry& job) const {
  const std::string project = ProjectOf(job.record());
  RunningRanks others = RanksOfUsers();
  others[job.record().owner()][project] -= static_cast<uint64_t>(job.newest()->record().ranks_size());
  uint64_t room = RoomOfUser(job, others).ranks;
  if (scheduler::Quotas quotas = projects_->QuotasNow(); !quotas.empty()) {
    const Device device = job.newest()->record().device();
    quotas.Release(project, device, Records::SlotsHeldBy(job));
    room = std::min(room, quotas.Room(project, device));
  }
  return room - room % job.least_group();
}

std::vector<scheduler::NodeView> Queue::NodeViewsOf(const ClaimsOfJobs* claims) const {
  using scheduler::Availability;
  const Records::Holders holders = records_->SlotHolders();
  std::vector<scheduler::NodeView> views;
  views.reserve(records_->nodes.size());
  for (const auto& [id, node] : records_->nodes) {
    Availability availability = Availability::kTakesRanks;
    if (node.machine.state() == NODE_STATE_AWAY || !node.reported) availability = Availability::kAway;
    std::string problem;
    if (availability == Availability::kTakesRanks && !NotReady(node.record()).empty()) {
      availability = Availability::kNotReady;
      problem = ProblemsOf(node.record().preflight());
    }
    if (node.record().draining() || node.record().leaving()) availability = Availability::kDraining;
    if (node.machine.state() == NODE_STATE_LOST) availability = Availability::kLost;
    scheduler::NodeView& view = views.emplace_back();
    view.id = id;
    view.availability = availability;
    view.problem = std::move(problem);
    view.slots.reserve(static_cast<size_t>(node.record().slots_size()));
    const auto here = holders.find(id);
    for (const Slot& slot : node.record().slots()) {
      scheduler::SlotView& its = view.slots.emplace_back();
      its.index = slot.index();
      its.device = slot.device();
      its.memory_bytes = slot.memory_bytes();
      its.stuck = node.stuck.contains(slot.index());
      if (here == holders.end()) continue;
      if (const auto held = here->second.find(slot.index()); held != here->second.end()) {
        its.holder = claims == nullptr ? scheduler::Claim{.job = held->second.job} : claims->at(held->second.job);
      }
    }
  }
  return views;
}

// A scheduling pass costs time proportional to the cluster. Reports arrive by the thousand when many nodes start,
// return or train. Most of them do not affect queued jobs, and for the others one pass in the next tick is enough.
void Queue::ScheduleAfter(const Event& event, Transaction& transaction) {
  if (std::holds_alternative<SyncRank>(event)) return;  // it frees no slots
  const bool contact = std::holds_alternative<NodeConnected>(event) || std::holds_alternative<NodeDisconnected>(event);
  const bool report = std::holds_alternative<NodeObserved>(event) || std::holds_alternative<RankRecord>(event) ||
                      std::holds_alternative<RankArrived>(event) || std::holds_alternative<PlanReady>(event);
  if (!contact && !report) return Schedule(transaction);
  if (contact || !transaction.Empty() || !settled_) schedule_at_ = transaction.now.steady;
}

std::optional<SteadyTime> Queue::never_starts_at() const {
  std::optional<SteadyTime> next;
  for (const auto& [job, due] : hopeless_) {
    if (due.has_value() && (!next.has_value() || *due < *next)) next = due;
  }
  return next;
}

void Queue::NoteHope(const JobId& job, bool could, SteadyTime now) {
  if (could) {
    hopeless_.erase(job);
  } else {
    hopeless_.try_emplace(job, now + options_->never_starts_after);
  }
}

void Queue::ReportHopeless(const scheduler::Cluster& cluster, Transaction& transaction) {
  std::erase_if(hopeless_, [this](const auto& entry) {
    const JobEntry* job = records_->FindJob(entry.first);
    return job == nullptr || job->machine.state() != JOB_STATE_QUEUED;
  });
  for (auto& [id, due] : hopeless_) {
    if (!due.has_value() || transaction.now.steady < *due) continue;
    if (transaction.Full()) return;
    due.reset();
    const JobEntry& job = records_->jobs.at(id);
    const scheduler::Demand demand = DemandOf(job);
    if (cluster.FitsWhenIdle(demand)) continue;
    transaction.AddEvent(
        &job, 0, "", "job.waiting",
        absl::StrCat(id.value(), " has waited for ", absl::FormatDuration(options_->never_starts_after), ": ",
                     cluster.Place(demand).reason, OfRefusal(job)));
  }
}

void Queue::LookAtJobsBefore(JobEntry& job, Transaction& transaction) {
  if (job.record().waits_for().empty() || transaction.Full()) return;
  auto& waits_for = *job.machine.fields().mutable_waits_for();
  for (int i = waits_for.size() - 1; i >= 0; --i) {
    const JobEntry* other = records_->FindJob(JobId(waits_for[i]));
    const JobState state = other == nullptr ? JOB_STATE_UNSPECIFIED : other->machine.state();
    if (state == JOB_STATE_COMPLETED) {
      waits_for.DeleteSubrange(i, 1);
      transaction.Touch(job.id());
    } else if (other == nullptr || other->machine.ended()) {
      const char* how = other == nullptr ? "was deleted" : state == JOB_STATE_FAILED ? "failed" : "was cancelled";
      return jobs_->Fail(job, absl::StrCat(waits_for[i], ", which it comes after, ", how), transaction);
    }
  }
}

void Queue::PauseIfReservationLost(JobEntry& job, Transaction& transaction) {
  if (job.machine.state() != JOB_STATE_QUEUED) return;
  const std::string why = LostReservation(job.record(), *records_);
  if (why.empty() || transaction.Full()) return;
  jobs_->Pause(job, why, transaction);
}

void Queue::Schedule(Transaction& transaction) {
  const size_t ended = records_->ended_jobs();
  RunPass(transaction);
  // What comes after a job that the pass failed may have been looked at before that.
  if (records_->ended_jobs() > ended) schedule_at_ = transaction.now.steady;
}

// Follows the rule of scheduler/pass.h. Jobs in backoff, those that come after others, and those that wait for their
// reservation to begin do not hold back others.
void Queue::RunPass(Transaction& transaction) {
  settled_ = true;
  schedule_at_.reset();
  const ClaimsOfJobs claims = Claims();
  const std::vector<scheduler::Claim> queue = InOrder(claims);
  if (queue.empty()) return hopeless_.clear();
  for (const scheduler::Claim& claim : queue) {
    LookAtJobsBefore(records_->jobs.at(claim.job), transaction);
    PauseIfReservationLost(records_->jobs.at(claim.job), transaction);
  }
  if (transaction.work_left) {
    schedule_at_ = transaction.now.steady;
    return;
  }
  scheduler::Cluster cluster(NodeViews(claims));
  Taken taken = TakenOf(claims);
  ReportHopeless(cluster, transaction);
  scheduler::Pass pass(&cluster);
  // What a job that is preempted leaves must not go to another one: jobs before the claimant whose plan is being made
  // have slots reserved, and those in backoff come back soon.
  std::vector<std::pair<scheduler::Claim, scheduler::Decision>> reserved;
  bool any_in_backoff = false;
  Refusals refusals;
  for (const scheduler::Claim& claim : queue) {
    JobEntry& job = records_->jobs.at(claim.job);
    if (job.machine.state() != JOB_STATE_QUEUED || !job.record().waits_for().empty()) continue;
    if (WaitsForReservation(job.record(), *records_)) continue;
    if (job.not_before.has_value() && transaction.now.steady < *job.not_before) {
      any_in_backoff = true;
      continue;
    }
    job.not_before.reset();
    if (TimeLeft(job, transaction.now.steady) <= absl::ZeroDuration()) {
      if (!transaction.Full()) jobs_->FailByTimeLimit(job, transaction);
      continue;
    }
    const UsersRoom users_room = RoomOfUser(job, taken.ranks);
    if (users_room.ranks < job.needed_ranks()) continue;
    const std::optional<Kind> kind = KindOf(job, EndOf(job, claim, cluster, pass, taken.quotas));
    if (const auto refused = kind.has_value() ? refusals.find(*kind) : refusals.end(); refused != refusals.end()) {
      if (refused->second.has_value()) NoteHope(job.id(), *refused->second, transaction.now.steady);
      continue;
    }
    scheduler::Demand demand = DemandOf(job);
    Limit(users_room.ranks, demand);
    if (!HasRoom(job, claim, cluster, taken.quotas, demand)) {
      plans_->Drop(job.id(), Plans::Purpose::kStart);
      if (kind.has_value()) refusals.emplace(*kind, std::nullopt);
      continue;
    }
    if (std::optional<Placement> start = FindStart(job, claim, kind, demand, pass, taken, refusals, transaction)) {
      pass.Start(claim, start->decision);
      generations_->Start(job, *std::move(start), transaction);
    } else if (preemption_->IsOn() && pass.IsHead(job.id()) && !job.whole_until.has_value() && !any_in_backoff &&
               !transaction.Full()) {
      demand.device = cluster.Resolve(demand.device);
      demand.slot_bytes = job.slot_bytes;  // larger, if the free ones have just refused it
      std::vector<scheduler::NodeView> nodes = NodeViews(claims);
      for (const auto& [holder, decision] : reserved) Reserve(holder, decision, nodes);
      const std::optional<SteadyTime> later =
          preemption_->For(job, std::move(demand), std::move(nodes), claims, taken.quotas.quotas(), transaction);
      if (later.has_value() && *later < schedule_at_.value_or(*later + absl::Seconds(1))) schedule_at_ = later;
    } else if (const Plans::Wanted* wanted = plans_->Find(job.id(), Plans::Purpose::kStart);
               preemption_->IsOn() && wanted != nullptr && !wanted->answer.has_value()) {
      reserved.emplace_back(claim, wanted->decision);
    }
    if (transaction.work_left) schedule_at_ = transaction.now.steady;  // the rest of the queue
    if (transaction.work_left || (!AnyReservation(*records_) && pass.Over())) return;
  }
}

// Plans a job only where slots are free for it, and remembers refusals, so a long queue costs nothing. While the plan
// is being made, those slots are reserved against jobs after it in the queue, and the job keeps them even if better
// ones become free: otherwise a cluster that changes all the time would keep it planning forever. Jobs before it in the
// queue may still take them. If the slots are too small, the job waits for larger ones; a job that may run on fewer
// ranks tries fewer.
std::optional<Placement> Queue::FindStart(JobEntry& job, const scheduler::Claim& claim, const std::optional<Kind>& kind,
                                          scheduler::Demand demand, scheduler::Pass& pass, Taken& taken,
                                          Refusals& refusals, Transaction& transaction) {
  using Purpose = Plans::Purpose;
  const JobId id = job.id();
  // Each turn after the first tries fewer ranks, or larger slots after a new refusal. A size that is not known to be
  // refused has to be planned, and that ends the loop, so the number of turns is bounded by kRefusedKept.
  for (bool first = true;; first = false) {
    const Plans::Wanted* wanted = plans_->Find(id, Purpose::kStart);
    scheduler::Decision decision = pass.Consider(claim, demand, wanted == nullptr ? nullptr : &wanted->decision);
    NoteHope(id, !decision.ranks.empty() || decision.fits_when_idle, transaction.now.steady);
    if (decision.ranks.empty()) {
      if (first && kind.has_value()) refusals.emplace(*kind, decision.fits_when_idle);
      plans_->Drop(id, Purpose::kStart);
      return std::nullopt;
    }
    if (transaction.Full()) return std::nullopt;
    const PlanState state = PlanOn(job, Purpose::kStart, decision);
    if (state == PlanState::kPending) {
      pass.Start(claim, decision);
      taken.Start(job, claim, decision);
      return std::nullopt;
    }
    if (state == PlanState::kFailed) {
      const std::string why(plans_->Find(id, Purpose::kStart)->answer->status().message());
      jobs_->Fail(job, absl::StrCat("it cannot be planned: ", why), transaction);
      return std::nullopt;
    }
    if (state == PlanState::kReady) {
      taken.Start(job, claim, decision);
      wanted = plans_->Find(id, Purpose::kStart);
      return Placement{std::move(decision), wanted->slots, **wanted->answer};
    }
    plans_->Drop(id, Purpose::kStart);
    if (job.slot_bytes != demand.slot_bytes) {
      demand.slot_bytes = job.slot_bytes;
    } else if (decision.ranks.size() > job.least_ranks()) {
      demand.ranks = static_cast<uint32_t>(decision.ranks.size()) - job.least_group();
    } else {
      return std::nullopt;
    }
  }
}

Queue::PlanState Queue::PlanOn(JobEntry& job, Plans::Purpose purpose, const scheduler::Decision& decision) {
  const JobId id = job.id();
  const Plans::Wanted* wanted = plans_->Find(id, purpose);
  if (wanted == nullptr || !SameSlots(wanted->decision, decision)) {
    Slots slots = SlotsFor(decision);
    if (RefusedOn(job, slots) != nullptr) return PlanState::kRefused;
    wanted = plans_->Ask(id, purpose, job.record().spec(), std::move(slots), decision);
  }
  if (!wanted->answer.has_value()) return PlanState::kPending;
  const absl::StatusOr<PlannedPtr>& plan = *wanted->answer;
  if (plan.ok() && !(*plan)->unfit.has_value()) return PlanState::kReady;
  const bool whole = wanted->slots.ranks.size() == job.record().spec().resources().ranks();
  // Submit planned the spec for all its ranks, but a later build may refuse what an earlier build accepted.
  if (!plan.ok() && whole) return PlanState::kFailed;
  Unfit unfit = plan.ok() ? *(*plan)->unfit : Unfit{std::string(plan.status().message()), 0};
  // Fewer ranks need more memory each, so only a refusal for all ranks sets the job's bound.
  if (whole) job.slot_bytes = std::max(job.slot_bytes, unfit.slot_bytes), job.smallest_bytes = unfit.smallest_bytes;
  if (RefusedOn(job, wanted->slots) == nullptr) job.refused.push_back({SignatureOf(wanted->slots), std::move(unfit)});
  if (job.refused.size() > kRefusedKept) job.refused.pop_front();
  return PlanState::kRefused;
}

Queue::EndsBefore Queue::EndOf(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Cluster& cluster,
                               const scheduler::Pass& pass, const scheduler::QuotaPass& quotas) const {
  const Device device = cluster.Resolve(job.record().spec().resources().device());
  return {pass.EndsBefore(claim, device, job.record().reservation()),
          quotas.EndsBeforeHead(ProjectOf(job.record()), device, claim),
          WindowsWithin(claim.ends_in, now_.wall, *records_)};
}

std::optional<Queue::Kind> Queue::KindOf(const JobEntry& job, EndsBefore before) const {
  const Job& record = job.record();
  if (!record.refused_by().empty() || plans_->Find(job.id(), Plans::Purpose::kStart) != nullptr) return std::nullopt;
  const Resources& resources = record.spec().resources();
  return Kind{
      ProjectOf(record),
      resources.device(),
      resources.ranks(),
      job.needed_ranks(),
      job.least_group(),
      TensorRanksOf(record.spec()),
      job.slot_bytes,
      job.smallest_bytes,
      before,
      {resources.node_selector().begin(), resources.node_selector().end()},
      absl::StrCat(resources.placement(), " ", record.reservation(), " ", resources.topology().SerializeAsString())};
}

// Nodes that have refused the job are tried again only if no others are left.
scheduler::Demand Queue::DemandOf(const JobEntry& job) const {
  const Resources& resources = job.record().spec().resources();
  scheduler::Demand demand{resources.ranks(), resources.device(), job.slot_bytes};
  demand.smallest_bytes = job.smallest_bytes;
  demand.multiple = job.least_group();
  demand.together = TensorRanksOf(job.record().spec());
  demand.context = ContextRanksOf(job.record().spec());
  if (!job.whole_until.has_value()) demand.least = job.least_ranks();
  Select(resources, *records_, demand);
  KeepOffReserved(job.record().reservation(), EndsIn(job), now_.wall, *records_, demand);
  if (!job.record().refused_by().empty()) {
    const bool others = jobs_->OthersCouldHold(job);
    std::set<NodeId>& refusing = others ? demand.avoid : demand.last_choice;
    std::set<std::string> names;
    for (const NodeRefusal& refusal : job.record().refused_by()) names.insert(refusal.node());
    for (const std::string& name : names) refusing.insert(NodeId(name));
    if (others) absl::StrAppend(&demand.where, ", without ", absl::StrJoin(names, ", "), ", which rejected it");
  }
  const Failure& failure = job.record().failure();
  if (!failure.node().empty() && failure.generation() == job.record().generation()) {
    demand.last_choice.insert(NodeId(failure.node()));
  }
  return demand;
}

Slots Queue::SlotsFor(const scheduler::Decision& decision) const {
  Slots slots{.device = decision.device, .fast_bf16 = true};
  std::map<NodeId, uint32_t> numbers;
  for (const scheduler::RankSlot& rank : decision.ranks) {
    slots.fast_bf16 &= HasFastBf16(records_->nodes.at(rank.node).record().cpu());
    const uint32_t node = numbers.emplace(rank.node, static_cast<uint32_t>(numbers.size())).first->second;
    slots.ranks.push_back({node, rank.memory_bytes});
    const Slot* slot = records_->SlotAt(rank.node, rank.slot);
    if (slot == nullptr) continue;
    slots.ranks.back().flops_per_second = slot->flops_per_second();
    if (slots.ranks.size() == 1) slots.model = slot->model();
  }
  slots.network = SlowestLink(*records_, decision.ranks);
  if (slots.network.has_value() && slots.device != DEVICE_CUDA) slots.core = SlowestCore(*records_, decision.ranks);
  return slots;
}

std::vector<Queue::Waiting> Queue::WaitingJobs(const JobId& only) const {
  std::vector<Waiting> all;
  const ClaimsOfJobs claims = Claims();
  scheduler::Cluster cluster(NodeViews(claims));
  Taken taken = TakenOf(claims);
  scheduler::Pass pass(&cluster);
  struct Reason {
    std::string text;  // empty: nothing has asked
    bool fits_when_idle = true;
    bool of_its_kind = false;  // it has no slots, and is no head: others of its kind wait for the same reason
  };
  std::map<Kind, Reason> reasons;  // until one more job would start
  const auto start = [&](const scheduler::Claim& claim, const JobEntry& job, const scheduler::Decision& decision) {
    pass.Start(claim, decision);
    taken.Start(job, claim, decision);
    reasons.clear();
  };
  const auto consider = [&](const JobEntry& job, const scheduler::Claim& claim, uint64_t room, bool asked) -> Reason {
    scheduler::Demand demand = DemandOf(job);
    Limit(room, demand);
    if (!HasRoom(job, claim, cluster, taken.quotas, demand)) {
      const std::string project = ProjectOf(job.record());
      const Device device = cluster.Resolve(demand.device);
      return {taken.quotas.Why(project, device, claim.job, demand.needed()), true,
              !taken.quotas.IsHead(project, device, claim.job)};
    }
    const Plans::Wanted* wanted = plans_->Find(claim.job, Plans::Purpose::kStart);
    const scheduler::Decision decision = pass.Consider(claim, demand, wanted == nullptr ? nullptr : &wanted->decision);
    if (decision.ranks.empty()) {
      return {asked ? pass.Why(decision, demand) : "", decision.fits_when_idle, !pass.IsHead(claim.job)};
    }
    if (wanted != nullptr && !wanted->answer.has_value()) {
      start(claim, job, decision);
      return {"slots are free, and its plan is being computed"};
    }
    if (const Unfit* unfit = RefusedOn(job, SlotsFor(decision)); unfit != nullptr) {
      return {"does not fit the free slots: " + unfit->why};
    }
    start(claim, job, decision);
    return {"about to start"};
  };
  uint32_t position = 0;
  for (const scheduler::Claim& claim : InOrder(claims)) {
    const JobEntry& job = records_->jobs.at(claim.job);
    const bool asked = only.empty() || claim.job == only;
    ++position;
    std::string why;
    if (job.not_before.has_value()) {
      why = "waiting for its restart backoff to end";
    } else if (!job.record().waits_for().empty()) {
      why = absl::StrCat("waiting for ", absl::StrJoin(job.record().waits_for(), ", "), " to complete");
    } else if (WaitsForReservation(job.record(), *records_)) {
      const Reservation& reservation = *ReservationOf(job.record(), *records_);
      why = absl::StrCat("waiting for reservation ", reservation.name(), ", which begins in ",
                         scheduler::InMinutes(FromProto(reservation.start()) - now_.wall));
    } else if (const UsersRoom room = RoomOfUser(job, taken.ranks); room.ranks < job.needed_ranks()) {
      why = absl::StrCat("waiting for other jobs of ", job.record().owner(), ": the limit is ", room.limit,
                         " running ranks a user", room.where);
    } else {
      const std::optional<Kind> kind = KindOf(job, EndOf(job, claim, cluster, pass, taken.quotas));
      const auto known = kind.has_value() ? reasons.find(*kind) : reasons.end();
      Reason reason;
      if (known != reasons.end() && (!asked || !known->second.text.empty())) {
        reason = known->second;
      } else {
        reason = consider(job, claim, room.ranks, asked);
        if (kind.has_value() && reason.of_its_kind) reasons[*kind] = reason;
      }
      why = reason.text;
      if (!reason.fits_when_idle) absl::StrAppend(&why, OfRefusal(job));
    }
    if (!asked) continue;
    // Also why it was queued again.
    const std::string& again = job.record().reason();
    const absl::Duration starts_in = pass.StartsIn(claim.job);
    const bool known = starts_in < absl::InfiniteDuration();
    all.push_back({claim.job, position,
                   absl::StrCat(Ordinal(position), " in the queue",
                                known ? ", starts in at most " + scheduler::InMinutes(starts_in) : "", ": ", why,
                                again.empty() ? "" : "; ", again),
                   known ? std::optional(now_.wall + starts_in) : std::nullopt});
    if (claim.job == only) break;
  }
  return all;
}

}  // namespace muster::core
