// What the process says when it ends. For a followed job its state decides.
#pragma once

#include "absl/status/status.h"
#include "proto/job.pb.h"

namespace muster::cli {

enum ExitCode {
  kOk = 0,
  kJobFailed = 1,  // also: something broke that is none of the others
  kUsage = 2,      // wrong flags, a wrong spec, a name that does not exist, a request that does not fit the state
  kNoConnection = 3,
  kNotAllowed = 4,
  kTimeout = 5,
  kJobCancelled = 6,
  kInterrupted = 130,
};

ExitCode ExitCodeOf(const absl::Status& status);
// Of an ended job; kOk for one that goes on.
ExitCode ExitCodeOf(v1::JobState state);

}  // namespace muster::cli
