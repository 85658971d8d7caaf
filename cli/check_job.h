// All errors of a job at once: of its file's form, of its values, and of the files that it names.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/client.h"
#include "cli/spec/problem.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// OK: the form is right, and the files that the job names are there as far as this machine can tell. InvalidArgument:
// every problem, and with them those that the coordinator finds in the values. `client`: of the coordinator; an error:
// it cannot be asked.
absl::Status CheckJob(const Reading& reading, const absl::StatusOr<std::unique_ptr<Client>>& client);

// Problems with paths of the spec, on a machine that runs all ranks: data files, folders to read, and the folder for
// checkpoints.
std::vector<Problem> PathProblems(const Reading& reading);

// `found` without what follows from a problem that is in `known`: a field that was misspelled is not missing, too.
std::vector<Problem> WithoutConsequences(std::vector<Problem> found, const std::vector<Problem>& known);

}  // namespace muster::cli
