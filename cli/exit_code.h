// The exit codes of `muster`. For a followed job the job's state decides.
#pragma once

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace muster::cli {

enum ExitCode {
  kOk = 0,
  kJobFailed = 1,  // also: any failure that no other code covers
  kUsage = 2,      // wrong flags, a wrong spec, a name that does not exist, a request that does not fit the state
  kNoConnection = 3,
  kNotAllowed = 4,
  kTimeout = 5,
  kJobCancelled = 6,
  kInterrupted = 130,
};

ExitCode ExitCodeOf(const absl::Status& status);
// The exit code of an ended job; kOk for a job that still runs.
ExitCode ExitCodeOf(v1::JobState state);

}  // namespace muster::cli
