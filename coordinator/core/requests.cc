#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/core/state.h"

namespace muster::core {

void Core::State::On(const CheckpointJob& event, Transaction& transaction) {
  JobEntry* job = NeedJob(event.job, transaction);
  if (job == nullptr) return;
  if (job->record().spec().train().checkpoint().path().empty()) {
    transaction.status = absl::FailedPreconditionError(
        absl::StrCat(event.job.value(), " writes no checkpoints: it has no checkpoint.path"));
    return;
  }
  if (job->machine.state() != JOB_STATE_RUNNING || job->newest() == nullptr) {
    transaction.status = absl::FailedPreconditionError(absl::StrCat(
        event.job.value(), " does not run, so it has nothing new to write: it is ",
        absl::AsciiStrToLower(std::string(absl::StripPrefix(JobState_Name(job->machine.state()), "JOB_STATE_")))));
    return;
  }
  job->checkpoint_request = event.request_number;
  ChangeDesiredOf(*job->newest(), transaction);
}

uint64_t Core::HighestStep(const JobId& id) const {
  const JobEntry* job = state_->FindJob(id);
  return job == nullptr ? 0 : job->highest_step;
}

}  // namespace muster::core
