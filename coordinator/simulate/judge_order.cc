// What jobs are promised that come after others, and those whose ranks must be near each other.
#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/simulate/accounts.h"
#include "coordinator/simulate/judge.h"
#include "coordinator/simulate/racks.h"

namespace muster::simulate {

bool Judge::CanComplete(const JobId& job) const {
  const auto found = books_.jobs.find(job);
  if (found == books_.jobs.end() || found->second.deleted) return false;
  return found->second.state != JOB_STATE_FAILED && found->second.state != JOB_STATE_CANCELLED;
}

void Judge::CheckStartsAfter(const std::string& name, const JobAccount& account) {
  for (const JobId& before : account.after) {
    const auto found = books_.jobs.find(before);
    const JobState state = found == books_.jobs.end() ? JOB_STATE_UNSPECIFIED : found->second.state;
    if (state == JOB_STATE_COMPLETED) continue;
    return Fail("a job starts when those before it have completed",
                absl::StrCat(name, " comes after ", before.value(), ", which is ", JobState_Name(state)));
  }
}

void Judge::CheckFailsWith(const JobId& id, const Job& job, JobAccount& account) {
  if (job.state() != JOB_STATE_FAILED || !absl::StrContains(job.reason(), ", which it comes after, ")) return;
  account.failed_with_one_before = std::any_of(account.after.begin(), account.after.end(), [this](const JobId& before) {
    const auto found = books_.jobs.find(before);  // also of one that was deleted since
    if (found == books_.jobs.end()) return false;
    return found->second.state == JOB_STATE_FAILED || found->second.state == JOB_STATE_CANCELLED;
  });
  if (!account.failed_with_one_before) {
    Fail("a job fails only with one before it that cannot complete", absl::StrCat(id.value(), ": ", job.reason()));
  }
}

void Judge::CheckTopology(const std::string& name, const Generation& generation, const Resources& asked) {
  const std::string& key = asked.topology().required();
  if (key.empty()) return;
  const auto domain = [&](const RankPlacement& rank) { return key == "rack" ? RackOf(rank.node()) : rank.node(); };
  for (const RankPlacement& rank : generation.ranks()) {
    if (domain(rank) == domain(generation.ranks(0))) continue;
    return Fail("all ranks are in one domain of the required topology",
                absl::StrCat(name, " is on ", generation.ranks(0).node(), " and ", rank.node()));
  }
}

}  // namespace muster::simulate
