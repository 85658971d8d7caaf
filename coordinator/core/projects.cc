#include "coordinator/core/projects.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/name.h"
#include "coordinator/core/reservations.h"
#include "coordinator/scheduler/fair_share.h"

namespace muster::core {
namespace {

constexpr size_t kMostProjects = 256;
constexpr int kMostUsers = 1000;
constexpr size_t kMostUserBytes = 128;
constexpr double kMostWeight = 1000;
constexpr uint32_t kMostSlots = 1'000'000;
constexpr absl::Duration kDecayStoredEvery = absl::Minutes(10);

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status Check(const Project& project) {
  constexpr char kRule[] = " may have 1 to 40 characters of a-z, 0-9 and -, and begins and ends with none of -";
  if (!IsName(project.name())) return Wrong(absl::StrCat("the name of a project", kRule));
  if (!project.cohort().empty() && !IsName(project.cohort())) return Wrong(absl::StrCat("the name of a cohort", kRule));
  const double weight = project.has_weight() ? project.weight() : 1;
  if (!(weight > 0 && weight <= kMostWeight)) {
    return Wrong(absl::StrCat("the weight must be above 0 and at most ", kMostWeight, ", got ", weight));
  }
  if (project.users_size() > kMostUsers) return Wrong(absl::StrCat("a project has at most ", kMostUsers, " users"));
  std::set<std::string> users;
  for (const std::string& user : project.users()) {
    if (user.empty() || user.size() > kMostUserBytes) return Wrong("a user's name has 1 to 128 characters");
    if (!users.insert(user).second) return Wrong(absl::StrCat("user ", user, " is there twice"));
  }
  if (project.name() == kDefaultProject && project.users_size() > 0) {
    return Wrong("project default has no users of its own: it is for those who are in no other project");
  }
  std::set<int> devices;
  for (const DeviceQuota& quota : project.quotas()) {
    if (quota.device() != DEVICE_CPU && quota.device() != DEVICE_CUDA) return Wrong("a quota is for cpu or for cuda");
    if (!devices.insert(quota.device()).second) return Wrong("a device has two quotas");
    if (quota.nominal() > kMostSlots || quota.borrowing_limit() > kMostSlots) {
      return Wrong(absl::StrCat("a quota is at most ", kMostSlots, " slots"));
    }
  }
  return absl::OkStatus();
}

// Of a row of use.
std::optional<SteadyTime> DecayDue(const std::map<std::string, Records::Usage>& users, const Options& options) {
  if (users.empty() || options.fair_share_half_life == absl::InfiniteDuration()) return std::nullopt;
  return users.begin()->second.as_of + kDecayStoredEvery;
}

double WeightOf(const Project* project) { return project == nullptr || !project->has_weight() ? 1 : project->weight(); }

}  // namespace

std::string ProjectOf(const Job& job) { return job.project().empty() ? kDefaultProject : job.project(); }

void Projects::On(const SetProject& event, Transaction& transaction) {
  transaction.status = Check(event.project);
  const std::string& name = event.project.name();
  if (transaction.status.ok() && records_->projects.size() >= kMostProjects && !records_->projects.contains(name)) {
    transaction.status = absl::ResourceExhaustedError(absl::StrCat("there are ", kMostProjects, " projects already"));
  }
  if (!transaction.status.ok()) return;
  Project record = event.project;
  for (DeviceQuota& quota : *record.mutable_quotas()) quota.clear_held();
  record.clear_usage();
  std::sort(record.mutable_users()->begin(), record.mutable_users()->end());
  const auto [entry, fresh] = records_->projects.emplace(name, record);
  if (!fresh && entry->second.SerializeAsString() == record.SerializeAsString()) return;
  entry->second = std::move(record);
  transaction.projects.insert(name);
  transaction.AddEvent(nullptr, 0, "", "project.set",
                       absl::StrCat("project ", name, fresh ? " was created" : " was changed"));
}

void Projects::On(const DeleteProject& event, Transaction& transaction) {
  if (!records_->projects.contains(event.name)) return;  // it may be a retry
  const std::vector<const JobEntry*> live = std::as_const(*records_).Live();
  const auto jobs = std::count_if(live.begin(), live.end(), [&](const JobEntry* job) {
    return event.name != kDefaultProject && ProjectOf(job->record()) == event.name;
  });
  if (jobs > 0) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        "project ", event.name, " has ", jobs, jobs == 1 ? " job that has" : " jobs that have", " not ended"));
    return;
  }
  records_->projects.erase(event.name);
  transaction.deleted_keys.push_back(ProjectKey(event.name));
  if (records_->usage.erase(event.name) > 0) transaction.deleted_keys.push_back(UsageKey(event.name));
  transaction.AddEvent(nullptr, 0, "", "project.deleted", absl::StrCat("project ", event.name, " was deleted"));
}

absl::StatusOr<std::string> Projects::For(const std::string& owner, const JobSpec& spec) const {
  std::vector<std::string> of;
  for (const auto& [name, project] : records_->projects) {
    if (std::find(project.users().begin(), project.users().end(), owner) != project.users().end()) of.push_back(name);
  }
  const std::string& named = spec.project();
  if (named.empty()) {
    if (of.size() > 1) {
      return absl::InvalidArgumentError(absl::StrCat("project: ", owner, " is in ", absl::StrJoin(of, ", "),
                                                     ": set project in the spec to one of them"));
    }
    return !of.empty() ? of[0] : any() ? kDefaultProject : "";
  }
  if (named != kDefaultProject && !records_->projects.contains(named)) {
    return absl::InvalidArgumentError(
        absl::StrCat("project: there is no project ", named, "; muster quota lists them"));
  }
  const bool is_in = named == kDefaultProject ? of.empty() : std::find(of.begin(), of.end(), named) != of.end();
  if (!is_in) {
    return absl::PermissionDeniedError(absl::StrCat(
        "project: ", owner, " is not in ", named,
        of.empty() ? "; an admin can change that: muster quota set" : ", but in " + absl::StrJoin(of, ", ")));
  }
  return named;
}

uint32_t Projects::MostRanksOfUser(const std::string& project) const {
  const auto found = records_->projects.find(project);
  return found == records_->projects.end() ? 0 : found->second.max_running_ranks_of_user();
}

scheduler::Quotas Projects::EmptyQuotas() const {
  scheduler::Quotas quotas;
  for (const auto& [name, project] : records_->projects) {
    for (const DeviceQuota& quota : project.quotas()) {
      std::optional<uint64_t> limit;
      if (quota.has_borrowing_limit()) limit = quota.borrowing_limit();
      if (quota.has_nominal()) quotas.Set(name, quota.device(), {quota.nominal(), limit, project.cohort()});
    }
  }
  return quotas;
}

scheduler::Quotas Projects::QuotasNow() const {
  scheduler::Quotas quotas = EmptyQuotas();
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    const uint64_t slots = Records::SlotsHeldBy(*job);
    if (slots > 0) quotas.Hold(ProjectOf(job->record()), job->newest()->record().device(), slots);
  }
  return quotas;
}

std::map<std::pair<std::string, std::string>, double> Projects::UseNow(SteadyTime now) const {
  std::map<std::pair<std::string, std::string>, double> use;
  for (const auto& [project, users] : records_->usage) {
    for (const auto& [user, used] : users) {
      use[{project, user}] = scheduler::Decayed(used.slot_seconds, now - used.as_of, options_->fair_share_half_life);
    }
  }
  for (const JobEntry* job : std::as_const(*records_).Live()) {
    if (!job->running.has_value()) continue;
    const double seconds = absl::ToDoubleSeconds(now - job->running->held_since);
    use[{ProjectOf(job->record()), job->record().owner()}] += seconds * static_cast<double>(Records::SlotsHeldBy(*job));
  }
  return use;
}

void Projects::SetLoads(std::map<JobId, scheduler::Claim>& claims, Device automatic, SteadyTime now) const {
  const auto use = UseNow(now);
  std::map<std::string, double> of_project;
  std::map<std::string, uint32_t> numbers;
  for (const auto& [key, used] : use) of_project[key.first] += used;
  std::vector<scheduler::Claim> running, waiting;
  for (auto& [id, claim] : claims) {
    const JobEntry& job = records_->jobs.at(id);
    const std::string project = ProjectOf(job.record());
    const auto entry = records_->projects.find(project);
    claim.project_load =
        scheduler::LoadOf(of_project[project], WeightOf(entry == records_->projects.end() ? nullptr : &entry->second));
    const auto user = use.find({project, job.record().owner()});
    claim.project = numbers.emplace(project, static_cast<uint32_t>(numbers.size() + 1)).first->second;
    claim.user_load = user == use.end() ? 0 : user->second;
    if (job.machine.state() == JOB_STATE_QUEUED) {
      if (job.record().waits_for().empty() && !WaitsForReservation(job.record(), *records_)) waiting.push_back(claim);
    } else if (job.running.has_value()) {
      scheduler::Claim& started = running.emplace_back(claim);
      started.project_load = started.user_load = 0;  // that others ran since is no reason to lose its place
    }
  }
  scheduler::Quotas own = EmptyQuotas();
  if (own.empty()) return;
  // Of projects of which a job waits for the rest of the quota: later ones of the project may only borrow, or they
  // would come before it as soon as they fit.
  std::set<std::pair<std::string, Device>> kept;
  const auto take = [&](std::vector<scheduler::Claim>& queue) {
    scheduler::SortQueue(queue);
    for (const scheduler::Claim& next : queue) {
      const JobEntry& job = records_->jobs.at(next.job);
      const std::string project = ProjectOf(job.record());
      const Device requested = job.record().spec().resources().device();
      const Device device = job.running.has_value()    ? job.newest()->record().device()
                            : requested == DEVICE_AUTO ? automatic
                                                       : requested;
      // Of one that is stopping all count until it has ended, so that it keeps its place meanwhile.
      const uint64_t slots =
          job.running.has_value() ? static_cast<uint64_t>(job.newest()->record().ranks_size()) : job.least_ranks();
      own.Hold(project, device, slots);
      if (!own.Borrows(project, device) && !kept.contains({project, device})) continue;
      claims.at(next.job).borrows = true;
      own.Release(project, device, slots);
      const scheduler::Quota* quota = own.Find(project, device);
      const bool waits = !job.running.has_value();
      if (waits && quota != nullptr && slots <= quota->nominal) kept.emplace(project, device);
    }
  };
  take(running);
  take(waiting);
}

void Projects::Use(const JobEntry& job, double slot_seconds, Transaction& transaction) {
  if (!any()) return;
  const std::string project = ProjectOf(job.record());
  const SteadyTime now = transaction.now.steady;
  auto& usage = records_->usage[project];
  Records::Usage& own = usage[job.record().owner()];
  Decay(usage, now);
  own.slot_seconds += slot_seconds;
  std::erase_if(
      usage, [&](const auto& entry) { return entry.second.slot_seconds < 1 && entry.first != job.record().owner(); });
  transaction.usages.insert(project);
}

void Projects::Decay(UseOfUsers& users, SteadyTime now) const {
  for (auto& [user, used] : users) {
    used.slot_seconds = scheduler::Decayed(used.slot_seconds, now - used.as_of, options_->fair_share_half_life);
    used.as_of = now;
  }
}

void Projects::StoreDecay(Transaction& transaction) {
  const SteadyTime now = transaction.now.steady;
  for (auto at = records_->usage.begin(); at != records_->usage.end();) {
    const auto project = at++;
    UseOfUsers& users = project->second;
    const std::optional<SteadyTime> due = DecayDue(users, *options_);
    if (!due.has_value() || now < *due) continue;
    if (transaction.Full()) return;
    Decay(users, now);
    std::erase_if(users, [](const auto& entry) { return entry.second.slot_seconds < 1; });
    if (users.empty()) {
      transaction.deleted_keys.push_back(UsageKey(project->first));
      records_->usage.erase(project);
    } else {
      transaction.usages.insert(project->first);
    }
  }
}

std::optional<SteadyTime> Projects::decay_due() const {
  std::optional<SteadyTime> next;
  for (const auto& [project, users] : records_->usage) {
    const std::optional<SteadyTime> due = DecayDue(users, *options_);
    if (due.has_value() && (!next.has_value() || *due < *next)) next = due;
  }
  return next;
}

std::vector<Project> Projects::List(SteadyTime now) const {
  std::map<std::string, Project> all = records_->projects;
  if (any() && !all.contains(kDefaultProject)) all[kDefaultProject].set_name(kDefaultProject);
  const scheduler::Quotas quotas = QuotasNow();
  const auto use = UseNow(now);
  std::vector<Project> list;
  for (auto& [name, project] : all) {
    for (const Device device : {DEVICE_CPU, DEVICE_CUDA}) {
      auto& own = *project.mutable_quotas();
      const uint64_t held = quotas.Held(name, device);
      auto quota = std::find_if(own.begin(), own.end(), [&](const DeviceQuota& q) { return q.device() == device; });
      if (quota == own.end() && held == 0) continue;
      DeviceQuota& shown = quota == own.end() ? *own.Add() : *quota;
      shown.set_device(device);
      shown.set_held(static_cast<uint32_t>(held));
    }
    for (const auto& [key, used] : use) {
      if (key.first != name) continue;
      UserUsage& shown = *project.add_usage();
      shown.set_user(key.second);
      shown.set_slot_seconds(used);
    }
    list.push_back(std::move(project));
  }
  return list;
}

}  // namespace muster::core
