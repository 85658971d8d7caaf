// The checkpoints that a job published. Commands on a job read these and nothing else that lies in its folder.
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

// NotFound: no such job, or this machine cannot reach the folder of its published checkpoints. FailedPrecondition: it
// writes none.
absl::StatusOr<JobCheckpoints> FindJobCheckpoints(const Invocation& invocation, const std::string& name);

// The folder of the newest published checkpoint. Its manifest and headers are intact and name the job; the tensors are
// not read. FailedPrecondition: none is published yet. NotFound, DataLoss: it is missing, damaged or another job's;
// never an older one instead.
absl::StatusOr<std::string> NewestPublished(const JobCheckpoints& checkpoints);

// OK: the manifest in `folder` names `job`. DataLoss: it names another job, or cannot be read.
absl::Status CheckWriter(const std::string& folder, const std::string& job);

}  // namespace muster::cli
