#include "coordinator/simulate/gang.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/replica.h"
#include "coordinator/simulate/worker_node.h"

namespace muster::simulate {
namespace {

constexpr char kKey[] = "collective";
constexpr absl::Duration kGangRetry = absl::Seconds(2);
constexpr uint64_t kCollective = 10;  // index of the op in a step

RankExit Exit(RankExit::Cause cause, const std::string& message, int signal = 0) {
  RankExit exit;
  exit.set_cause(cause);
  exit.set_message(message);
  exit.set_signal(signal);
  return exit;
}

}  // namespace

Gang::Gang(World* world, const Ran& any)
    : world_(world), job_(any.rank.job), generation_(any.rank.generation), name_(any.name) {}
Gang::~Gang() = default;

const Gang* Gangs::Find(const JobId& job, uint64_t name) const {
  const auto found = gangs_.find({job, name});
  return found == gangs_.end() ? nullptr : found->second.get();
}

Gang& Gangs::Of(const Ran& rank) {
  std::unique_ptr<Gang>& gang = gangs_[{rank.rank.job, rank.name}];
  if (gang == nullptr) gang = std::make_unique<Gang>(world_, rank);
  return *gang;
}

std::vector<std::shared_ptr<Process>> Gangs::Living() const {
  std::vector<std::shared_ptr<Process>> living;
  for (const auto& [key, gang] : gangs_) {
    for (const auto& [rank, process] : gang->members()) {
      if (process->alive) living.push_back(process);
    }
  }
  return living;
}

void Gang::Join(const std::shared_ptr<Process>& process) {
  process->gang = this;
  process->page.moved = world_->agenda.now();
  members_[process->id.rank] = process;
  if (replica_ == nullptr && train().has_sync()) replica_ = std::make_unique<Replica>(world_, this, train().sync());
  step_time_ = world_->random.Between(absl::Seconds(2), absl::Seconds(6));
  world_->agenda.After(world_->random.Between(absl::Seconds(1), absl::Seconds(5)), [this, process] { Load(process); });
}

void Gang::Load(const std::shared_ptr<Process>& process) {
  if (!process->alive) return;
  if (process->frozen) return world_->agenda.After(kGangRetry, [this, process] { Load(process); });
  const Assignment& assignment = process->assignment;
  if (process->node->lacking()) {
    world_->Count("refused by a node");
    RankExit refusal = Exit(RankExit::REFUSED, "the data are not mounted");
    refusal.set_of_node(true);
    return EndProcess(*process, refusal);
  }
  if (process->id.rank == 0 && !Claim()) {
    return EndProcess(*process, Exit(RankExit::REFUSED, "checkpoint.path belongs to another job"));
  }
  if (assignment.has_resume_from() && !Resume(*process)) {
    // An outdated generation may find its checkpoint gone; it will be killed soon.
    if (IsCurrent()) {
      world_->judge.Fail("nothing published is lost",
                         absl::StrCat(process->id.ToString(), " finds no ", assignment.resume_from().directory()));
    }
    return EndProcess(*process, Exit(RankExit::FAILED, "the checkpoint is not there"));
  }
  Meet(process);
}

// As trainer::Resume: from an older published one if the newest is damaged. After a restore the published ones may all
// have been replaced by newer ones.
bool Gang::Resume(const Process& process) {
  const auto& steps = folder().steps;
  const auto load = [this](const std::string& directory) {
    if (replica_ != nullptr) replica_->Load(folder().outers.at(directory));
  };
  const PublishedCheckpoint& from = process.assignment.resume_from();
  if (!steps.contains(from.directory()) && world_->judge.restores() == 0) return false;
  using Step = std::optional<std::pair<uint64_t, uint64_t>>;
  Step older, newest;
  for (const PublishedCheckpoint& published : process.assignment.published()) {
    if (published.step() < from.step() && folder().IsWhole(published.directory())) {
      older = std::max(older, Step(steps.at(published.directory())));
    }
  }
  if (older.has_value() && IsCurrent() && !std::exchange(loads_, true)) MayDamage(from.directory());
  if (folder().IsWhole(from.directory())) {
    step_ = from.step();
    load(from.directory());
    return true;
  }
  for (const auto& [name, step] : steps) {
    if (folder().IsWhole(name)) newest = std::max(newest, Step(step));
  }
  if (!older.has_value() && !newest.has_value()) return false;
  world_->Count(older.has_value() ? "resumed from an older checkpoint" : "resumed from an unpublished checkpoint");
  const auto chosen = older.value_or(newest.value_or(std::pair<uint64_t, uint64_t>()));
  step_ = chosen.first;
  for (const auto& [name, step] : steps) {
    if (step == chosen) load(name);
  }
  return true;
}

// At the end all jobs make progress.
void Gang::MayDamage(const std::string& checkpoint) {
  if (world_->calm || !world_->settings.checkpoints_rot || !world_->damage.Percent(40)) return;
  world_->Count("newest checkpoint damaged");
  world_->Trace([&] { return absl::StrCat(checkpoint, " of ", job_.value(), " is damaged"); });
  folder().damaged.insert(checkpoint);
}

bool Gang::IsCurrent() const {
  const auto job = world_->judge.jobs().find(job_);
  return job != world_->judge.jobs().end() && world_->judge.NameOf(job_, generation_) == name_ &&
         job->second.generations.rbegin()->first == generation_ && !job->second.ended.contains(generation_);
}

World::CheckpointFolder& Gang::folder() { return world_->folders[train().checkpoint().path()]; }

// As checkpoint::Claim. A deleted job still owns its folder.
bool Gang::Claim() {
  JobId& owner = folder().owner;
  if (owner.empty()) owner = job_;
  if (owner == job_) return true;
  // A rank of a deleted job may still start on a node that was cut off.
  const auto alive = [&](const JobId& job) {
    const auto known = world_->judge.jobs().find(job);
    return known != world_->judge.jobs().end() && !known->second.deleted;
  };
  if (alive(owner) && alive(job_)) {
    world_->judge.Fail("a folder has one owner",
                       absl::StrCat(job_.value(), " was placed with the folder of ", owner.value()));
  }
  world_->Count("folder of a deleted job");
  return false;
}

// Rank 0 sets the key that the others wait for, as with an NCCL id. Each rank retries until it gets a reply.
void Gang::Meet(const std::shared_ptr<Process>& process) {
  if (!process->alive || process->met) return;
  const auto again = [this, process] { world_->agenda.After(kGangRetry, [this, process] { Meet(process); }); };
  if (process->frozen) return again();
  Rendezvous(process, [=, this](const absl::Status& status) {
    if (!process->alive || process->met) return;
    if (!status.ok() || process->frozen) return again();
    process->met = true;
    BeginIfAllMet();
  });
}

void Gang::Resend(const std::shared_ptr<Process>& process) {
  if (process->id.rank != 0 || !process->alive || !process->met || running_) return;
  Rendezvous(process, [this, process](const absl::Status& status) {
    if (absl::IsUnavailable(status)) world_->agenda.After(kGangRetry, [this, process] { Resend(process); });
  });
}

void Gang::Rendezvous(const std::shared_ptr<Process>& process, const std::function<void(absl::Status)>& answered) {
  const std::string value = absl::StrCat("of generation ", generation_, " named ", name_);
  const bool sets = process->id.rank == 0;
  const auto work = [=, this](server::Turn& turn, const Coordinator::Reply& reply) {
    absl::Status current = turn.core().CheckCurrent(process->id);
    if (current.ok() && !turn.core().HasArrived(process->id)) {
      current = turn.Handle(core::RankArrived{process->id}).status;
    }
    turn.AfterCommit([=, this, &turn] {
      if (!current.ok()) return reply(current);
      server::Rendezvous& rendezvous = turn.rendezvous();
      if (sets) return reply(rendezvous.Set({job_, generation_}, kKey, value));
      const SteadyTime now = turn.now().steady;
      rendezvous.Get({job_, generation_}, kKey, now + absl::Seconds(1), now,
                     [=, this](const absl::StatusOr<std::string>& got) {
                       if (got.ok() && *got != value) {
                         world_->judge.Fail("rendezvous are separate",
                                            absl::StrCat(process->id.ToString(), " got the key ", *got));
                       }
                       reply(got.status());
                     });
    });
  };
  world_->coordinator->Call(work, process->node->reaches_coordinator(), answered);
}

bool Gang::Intact() const {
  const auto world = static_cast<size_t>(members_.begin()->second->assignment.world());
  return members_.size() == world && std::all_of(members_.begin(), members_.end(), [](const auto& member) {
           return member.second->alive && member.second->met;
         });
}

void Gang::BeginIfAllMet() {
  if (running_ || !Intact()) return;
  running_ = true;
  world_->judge.Resumed(job_, name_, step_);
  for (const auto& [rank, process] : members_) {
    process->page = {step_, 0, 0, world_->agenda.now()};
    Record record;
    record.mutable_running()->set_resumed_step(step_);
    process->node->Append(process->id, std::move(record));
  }
  // The previous generation wrote its last checkpoint, but was killed before its orderly end.
  if (step_ >= train().steps()) return EndAll(RankExit::COMPLETED);
  CatchUp(0);
}

void Gang::CatchUp(uint32_t fragment) {
  if (replica_ == nullptr || fragment == replica_->fragments()) return PlanStep();
  Exchange(fragment, /*offers=*/false, [this, fragment] { CatchUp(fragment + 1); });
}

void Gang::Exchange(uint32_t fragment, bool offers, std::function<void()> done) {
  replica_->Exchange(fragment, offers, std::move(done));
  if (!std::exchange(waiting_, true)) WaitForExchange();
}

void Gang::WaitForExchange() {
  world_->agenda.After(step_time_, [this] {
    waiting_ = replica_->exchanging() && Intact() && !ending_;
    if (!waiting_) return;
    CheckContact();
    if (!WaitsForFrozen()) {
      for (const auto& [rank, process] : members_) process->page = {step_, 0, 0, world_->agenda.now()};
    }
    WaitForExchange();
  });
}

// A rank that no one could stop ends itself.
void Gang::CheckContact() const {
  constexpr absl::Duration kLate = absl::Seconds(12);  // contact that is this old still renews a lease, and a timer
  const absl::Duration longest = std::max(world_->settings.orphan_grace, world_->settings.outage_grace) + kLate;
  for (const auto& [rank, process] : members_) {
    if (world_->agenda.now() - process->node->contact() <= longest) continue;
    world_->judge.Fail("a rank out of contact ends itself",
                       absl::StrCat(process->id.ToString(), " trains on ", process->node->id(), " after ",
                                    absl::FormatDuration(world_->agenda.now() - process->node->contact())));
  }
}

void Gang::PlanStep() {
  world_->agenda.After(step_time_, [this] { EndStep(); });
}

void Gang::EndStep() {
  if (!Intact() || ending_) return;
  if (WaitsForFrozen() || writing_) return PlanStep();
  CheckContact();
  ++step_;
  for (const auto& [rank, process] : members_) process->page = {step_, 0, 0, world_->agenda.now()};
  Record record;
  record.mutable_metrics()->set_step(step_);
  record.mutable_metrics()->set_loss(static_cast<double>(name_));
  members_.at(0)->node->Append(members_.at(0)->id, std::move(record));
  for (const auto& [rank, process] : members_) process->node->ReportStep(process->id, step_);
  const std::optional<uint32_t> due = replica_ == nullptr ? std::nullopt : replica_->DueAfter(step_);
  if (due.has_value()) return Exchange(*due, /*offers=*/true, [this] { FinishStep(); });
  FinishStep();
}

// The others are in the collective in which they wait for it.
bool Gang::WaitsForFrozen() {
  const bool any =
      std::any_of(members_.begin(), members_.end(), [](const auto& member) { return member.second->frozen; });
  for (const auto& [rank, process] : members_) {
    if (!any || process->frozen || process->page.issued == kCollective) continue;
    process->page = {step_, kCollective, kCollective - 1, world_->agenda.now()};
  }
  return any;
}

void Gang::FinishStep() {
  const bool last = step_ >= train().steps();
  const bool all_asked = std::all_of(members_.begin(), members_.end(), [](const auto& m) { return m.second->asked; });
  if (last || all_asked || step_ % train().checkpoint().every_steps() == 0) return WriteCheckpoint(last || all_asked);
  PlanStep();
}

// Asynchronous, except for the last one: the next step starts at once.
void Gang::WriteCheckpoint(bool last) {
  writing_ = true;
  const uint64_t step = step_;
  const Outers outers = replica_ == nullptr ? Outers() : replica_->outers();
  world_->agenda.After(world_->random.Between(absl::Milliseconds(200), absl::Seconds(3)), [=, this] {
    writing_ = false;
    if (!Intact() || ending_) return;
    const bool full = world_->agenda.now() < world_->disk_full_until;
    if (full) {
      world_->Count("checkpoint on a full disk");
      if (last) {  // earlier checkpoints stay, and the job reports the failure
        const auto exit = Exit(RankExit::FAILED, "no space left on device");
        const auto members = members_;
        for (const auto& [rank, process] : members) EndSoon(process, absl::Seconds(1), exit);
        return;
      }
    } else {
      const WrittenCheckpoint written{job_, name_, step, absl::StrFormat("step-%06d-g%d", step, generation_)};
      world_->judge.Written(written);
      if (folder().owner != job_) world_->judge.Fail("a folder has one owner", absl::StrCat(job_.value(), " writes"));
      folder().steps[written.directory] = {step, generation_};
      if (replica_ != nullptr) folder().outers[written.directory] = outers;
      Record record;
      record.mutable_checkpoint()->set_step(step);
      record.mutable_checkpoint()->set_directory(written.directory);
      record.mutable_checkpoint()->set_stall_seconds(0.25);
      members_.at(0)->node->Append(members_.at(0)->id, std::move(record));
    }
    if (last) EndAll(step_ >= train().steps() ? RankExit::COMPLETED : RankExit::STOPPED);
  });
  if (!last) PlanStep();
}

void Gang::EndAll(RankExit::Cause cause) {
  ending_ = true;
  const auto members = members_;
  for (const auto& [rank, process] : members) {
    if (cause == RankExit::COMPLETED) {
      Record record;
      record.mutable_finished()->set_step(step_);
      process->node->Append(process->id, std::move(record));
    }
    EndSoon(process, absl::Seconds(2), Exit(RankExit::COMPLETED, ""));
  }
}

void Gang::EndSoon(const std::shared_ptr<Process>& process, absl::Duration latest, RankExit exit) {
  const absl::Duration delay = world_->random.Between(absl::Milliseconds(10), latest);
  world_->agenda.After(delay, [this, process, latest, exit = std::move(exit)] {
    if (!process->alive) return;
    if (process->frozen) return EndSoon(process, latest, exit);
    EndProcess(*process, exit);
  });
}

void Gang::Stop(Process& process, const muster::Stop& stop) {
  if (!process.alive) return;
  if (stop.checkpoint_first() && running_ && Intact()) {
    process.asked = true;
    return;
  }
  Terminate(process);
}

void Gang::Terminate(Process& process) {
  // Some ranks hang in a collective until their worker's deadline.
  if (!process.alive || world_->random.Percent(20)) return;
  EndSoon(members_.at(process.id.rank), absl::Seconds(2), Exit(RankExit::STOPPED, ""));
}

void Gang::Freeze(Process& process) {
  if (!process.alive || process.frozen) return;
  process.frozen = true;
  world_->Trace([&] { return absl::StrCat(process.id.ToString(), " is frozen"); });
  world_->judge.Frozen({process.id, name_}, process.page.issued != kCollective);
  if (!running_) return;
  const uint64_t issued = world_->random.Below(kCollective);
  if (process.page.issued != kCollective) process.page = {step_, issued, issued, world_->agenda.now()};
}

void Gang::Thaw(Process& process) {
  if (!std::exchange(process.frozen, false)) return;
  world_->Trace([&] { return absl::StrCat(process.id.ToString(), " resumes"); });
  world_->judge.Thawed({process.id, name_});
}

void Gang::EndProcess(Process& process, RankExit exit) {
  if (!process.alive) return;
  process.alive = false;
  world_->judge.Ended({process.id, name_});
  if (replica_ != nullptr && replica_->exchanging() && !world_->calm) world_->Count("rank ended in an exchange");
  process.node->ProcessEnded(process.id, std::move(exit));
  if (ending_ || !running_) return;
  const auto members = members_;
  for (const auto& [rank, other] : members) {
    if (!other->alive || world_->random.Percent(25)) continue;  // hangs
    RankExit consequence = Exit(RankExit::FAILED, absl::StrCat("rank ", process.id.rank, " is gone"));
    consequence.set_of_other_rank(true);
    EndSoon(other, absl::Seconds(4), std::move(consequence));
  }
}

}  // namespace muster::simulate
