// What the judge checks of full disks and of restored copies.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/simulate/judge.h"

namespace muster::simulate {

void Judge::ReportedDropped(const JobId& job, uint64_t items) {
  const auto dropped = dropped_.extract(job);
  const uint64_t lost = dropped.empty() ? 0 : dropped.mapped();
  if (items != lost) {
    Fail("what is lost is reported",
         absl::StrCat(lost, " points of ", job.value(), " were lost, and its stream tells of ", items));
  }
}

void Judge::CoordinatorStarted() {
  ++coordinator_starts_;
  restarts_in_exchanges_ +=
      std::any_of(offers_.begin(), offers_.end(), [](const auto& offer) { return !offer.second.since.empty(); });
  dropped_.clear();  // it has forgotten
}

uint64_t Judge::NameOf(const JobId& job, uint64_t generation) const {
  const auto account = books_.jobs.find(job);
  if (account == books_.jobs.end()) return 0;
  const auto name = account->second.names.find(generation);
  return name == account->second.names.end() ? 0 : name->second;
}

void Judge::ReportedGeneration(const JobId& job, uint64_t generation) {
  const auto account = books_.jobs.find(job);
  if (account != books_.jobs.end()) account->second.reported = std::max(account->second.reported, generation);
}

void Judge::Restored(Books books) {
  for (const auto& [job, account] : books_.jobs) {
    if (!books.jobs.contains(job)) lost_.insert(job);
  }
  books_ = std::move(books);
  for (auto& [job, account] : books_.jobs) account.reported = 0;
  ++restores_;
}

}  // namespace muster::simulate
