#include "coordinator/core/time_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/time_limit.h"
#include "coordinator/core/jobs.h"

namespace muster::core {
namespace {

constexpr absl::Duration kLongestWarning = absl::Minutes(5);

}  // namespace

absl::Duration TimeLimitOf(const JobSpec& spec) {
  if (spec.time_limit().empty()) return absl::InfiniteDuration();
  return ParseTimeLimit(spec.time_limit()).value_or(absl::InfiniteDuration());
}

absl::Duration WarningOf(absl::Duration limit) { return std::min(limit / 10, kLongestWarning); }

absl::Duration TimeLeft(const JobEntry& job, SteadyTime now) {
  absl::Duration left = TimeLimitOf(job.record().spec()) - absl::Seconds(job.record().held_seconds());
  if (job.running.has_value()) left -= now - job.running->held_since;
  return left;
}

std::optional<SteadyTime> TimeLimits::DueAt(const JobEntry& job) {
  const JobState state = job.machine.state();
  if (!job.running.has_value() || (state != JOB_STATE_STARTING && state != JOB_STATE_RUNNING)) return std::nullopt;
  const absl::Duration limit = TimeLimitOf(job.record().spec());
  if (limit == absl::InfiniteDuration()) return std::nullopt;
  const absl::Duration left = TimeLeft(job, job.running->held_since);
  return job.running->held_since + (job.running->time_limit_warned ? left : left - WarningOf(limit));
}

void TimeLimits::Check(JobEntry& job, Transaction& transaction) {
  const std::string& limit = job.record().spec().time_limit();
  const absl::Duration left = TimeLeft(job, transaction.now.steady);
  if (left <= absl::ZeroDuration()) {
    return generations_->Stop(job, END_REASON_TIMEOUT, STOP_INTENT_TIMEOUT,
                              absl::StrCat("its time_limit of ", limit, " is reached"), transaction);
  }
  job.running->time_limit_warned = true;
  const bool writes = !job.record().spec().train().checkpoint().path().empty();
  if (writes && job.machine.state() == JOB_STATE_RUNNING) {
    // Even, so no user's request has it (NewRequestNumber in rpc/request_number.h).
    job.running->checkpoint_request = 2 * job.record().generation();
    transaction.ChangeDesired(*job.newest());
  }
  transaction.AddEvent(
      &job, job.record().generation(), "", "job.time_limit",
      absl::StrCat(job.record().id(), " will be stopped in ", absl::FormatDuration(absl::Ceil(left, absl::Seconds(1))),
                   ": its time_limit is ", limit));
}

// It may use all of the time that it has to stop.
absl::Duration TimeLimits::EndsIn(const JobEntry& job, SteadyTime now) const {
  const absl::Duration left = TimeLeft(job, now);
  if (left == absl::InfiniteDuration()) return left;
  return std::max(left, absl::ZeroDuration()) + generations_->StopDeadline(job.record().spec(), END_REASON_TIMEOUT);
}

}  // namespace muster::core
