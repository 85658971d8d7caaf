// Turns a job file and flags into a spec to send.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// `files`: at least one path, or "-" for standard input; later files override earlier ones. `sets`: the values of
// --set. Problems of the form are in the reading: CheckJob (check_job.h) adds all others. Errors: a file that cannot be
// read, a --set that is no assignment.
absl::StatusOr<Reading> LoadJobFiles(const std::vector<std::string>& files, const std::vector<std::string>& sets,
                                     const std::vector<Assignment>& flags);
// Builds the spec from flags alone.
absl::StatusOr<Reading> LoadFlags(const std::vector<Assignment>& flags, const std::vector<std::string>& sets);

// The status of Submit or Plan: if the coordinator refused the spec, its errors with their locations; other errors
// unchanged.
absl::Status WithPlaces(const absl::Status& status, const SourceMap& sources);

}  // namespace muster::cli
