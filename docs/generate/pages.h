// The pages, and parts of pages, that are made from the programs. `bazel run //docs:update` writes them into the
// checkout; a test fails when one is stale.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::docs {

struct Page {
  std::string path;  // from the top of the checkout: "docs/cli.md"
  std::string text;
};

// The output of a program of the checkout, with exit code 0: ("coordinator/muster-coordinator", "--help").
using RunProgram = std::function<absl::StatusOr<std::string>(const std::string& program, const std::string& arguments)>;
// A file of the checkout.
using ReadFile = std::function<absl::StatusOr<std::string>(const std::string& path)>;

// docs/job-spec.md, docs/cli.md and docs/states.md as a whole, and the parts of docs/configuration.md between
// `<!-- generated: PROGRAM -->` and `<!-- end -->`. Errors: those of `run` and `read`; FailedPrecondition: a page
// without the place of its part.
absl::StatusOr<std::vector<Page>> GeneratedPages(const RunProgram& run, const ReadFile& read);

// `run` for a process whose working folder is the runfiles' (`bazel run`, `bazel test`).
absl::StatusOr<std::string> RunFromRunfiles(const std::string& program, const std::string& arguments);

}  // namespace muster::docs
