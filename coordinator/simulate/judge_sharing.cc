// What projects are promised, and what preemption and time limits may do.
#include <algorithm>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/simulate/accounts.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {
namespace {

constexpr uint64_t kMostInTurns = 1;  // their places in the order may change, as quotas are used

}  // namespace

// Held slots never exceed nominal + borrowing limit, and nothing is borrowed that is not idle. Checked when a job
// starts: quotas may be lowered, or set, while jobs run.
void Judge::CheckQuota(const std::string& name, const JobAccount& account) {
  const auto own = books_.projects.find(account.project);
  if (own == books_.projects.end()) return;
  std::map<std::string, uint64_t> held;
  for (const auto& [slot, holder] : books_.slots) ++held[books_.jobs[holder.first].project];
  const DeviceQuota& quota = own->second.quotas(0);
  const uint64_t its = held[account.project];
  if (quota.has_borrowing_limit() && its > uint64_t{quota.nominal()} + quota.borrowing_limit()) {
    return Fail("a project holds at most its quota and what it may borrow",
                absl::StrCat(name, ": ", account.project, " holds ", its, " slots"));
  }
  uint64_t nominal = 0, all = 0;
  for (const auto& [project, record] : books_.projects) {
    nominal += record.quotas(0).nominal();
    all += held[project];
  }
  if (its > quota.nominal() && all > nominal) {
    Fail("only idle quota is lent", absl::StrCat(name, ": the cohort holds ", all, " of ", nominal, " slots"));
  }
}

// Called for every change of such a generation.
void Judge::CheckPreemption(const JobId& id, const Generation& generation, JobAccount& account) {
  const auto before = account.generations.find(generation.number());
  if (before != account.generations.end() && before->second.reason() == END_REASON_PREEMPTED) return;
  const std::string name = Text(id, generation.number());
  if (!by_priority_ && books_.projects.empty()) return Fail("preemption is off", name);
  const auto since = account.runs_since.find(generation.number());
  if (since == account.runs_since.end() || clock_->Read().steady - since->second < min_run_) {
    return Fail("no job is preempted before it has run for the least time", name);
  }
  // "preempted by job1-request1.1: ...", from the job's row, which came first.
  absl::string_view reason = account.reason;
  if (!absl::ConsumePrefix(&reason, "preempted by ")) return;  // a user's request came with it
  const JobId by(std::string(reason.substr(0, reason.find_first_of(":,"))));
  const auto claimant = books_.jobs.find(by);
  if (claimant == books_.jobs.end()) return Fail("preempted by a job", absl::StrCat(name, ": ", account.reason));
  const uint64_t turns = std::min(++account.preempted_by[by], claimant->second.preempted_by[id]);
  if (turns > kMostInTurns) {
    Fail("no preemption cycles",
         absl::StrCat(id.value(), " and ", by.value(), " preempted each other in turns, ", turns, " times"));
  }
}

void Judge::CheckTimeLimit(const JobId& id, const Job& job, JobAccount& account) {
  account.reason = job.reason();
  if (job.state() != JOB_STATE_FAILED || !absl::StrContains(job.reason(), "time_limit")) return;
  account.timed_out = true;
  if (absl::Seconds(job.held_seconds()) < account.time_limit - absl::Milliseconds(1)) {
    Fail("a time limit is not early", absl::StrCat(id.value(), " failed after ", job.held_seconds(), " s"));
  }
}

}  // namespace muster::simulate
