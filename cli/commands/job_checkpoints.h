// What a job published, where this machine can read it. Commands on a job read exactly that, whatever else lies in its
// folder.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "proto/job.pb.h"

namespace muster::cli {

struct JobCheckpoints {
  std::string job;                                 // id
  std::string path;                                // checkpoint.path
  std::vector<v1::PublishedCheckpoint> published;  // oldest first
};

// NotFound: no such job; or this machine does not see the folder of its published checkpoints. FailedPrecondition: it
// writes none.
absl::StatusOr<JobCheckpoints> FindJobCheckpoints(const Invocation& invocation, const std::string& name);

// The folder of the newest published one, which is there and says that it is the job's; all its bytes are not read.
// FailedPrecondition: none is published yet. NotFound, DataLoss: it is not there, is damaged, or is another job's; an
// older one is not looked for.
absl::StatusOr<std::string> NewestPublished(const JobCheckpoints& checkpoints);

// OK: the checkpoint in `folder` says that `job` wrote it. DataLoss: another did, or it cannot be read.
absl::Status CheckWriter(const std::string& folder, const std::string& job);

}  // namespace muster::cli
