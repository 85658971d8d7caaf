#include "cli/job_file.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/config.h"
#include "cli/spec/paths.h"
#include "cli/spec/set.h"

namespace muster::cli {
namespace {

absl::StatusOr<std::string> WorkingFolder() {
  char folder[4096];
  if (getcwd(folder, sizeof(folder)) == nullptr) return absl::ErrnoToStatus(errno, "cannot tell the working folder");
  return std::string(folder);
}

absl::Status AddSets(const std::vector<std::string>& sets, std::vector<Assignment>& assignments) {
  for (const std::string& text : sets) {
    absl::StatusOr<Assignment> assignment = ParseAssignment(text);
    if (!assignment.ok()) return assignment.status();
    assignments.push_back(*std::move(assignment));
  }
  return absl::OkStatus();
}

absl::StatusOr<Reading> Finish(Reading reading, const std::string& file_folder, const std::string& working_folder) {
  MakePathsAbsolute(file_folder, working_folder, reading);
  if (!reading.problems.empty()) return ToStatus(reading.problems);
  return reading;
}

}  // namespace

absl::StatusOr<Reading> LoadJobFile(const std::string& file, const std::vector<std::string>& sets,
                                    const std::vector<Assignment>& flags) {
  std::vector<Assignment> assignments = flags;
  if (absl::Status added = AddSets(sets, assignments); !added.ok()) return added;
  const absl::StatusOr<std::string> working_folder = WorkingFolder();
  if (!working_folder.ok()) return working_folder.status();
  const bool standard_input = file == "-";
  // A byte more than the reader takes, so that it is the one to refuse.
  const absl::StatusOr<std::string> text = ReadFile(standard_input ? "/dev/stdin" : file, kMaxYamlBytes + 1);
  if (!text.ok()) return text.status();
  const std::string absolute = AbsolutePath(file, *working_folder);
  const std::string folder = absolute.substr(0, absolute.rfind('/'));
  return Finish(ReadSpec(*text, standard_input ? "stdin" : file, assignments),
                standard_input   ? *working_folder
                : folder.empty() ? "/"
                                 : folder,
                *working_folder);
}

absl::StatusOr<Reading> LoadFlags(const std::vector<Assignment>& flags, const std::vector<std::string>& sets) {
  std::vector<Assignment> assignments = flags;
  if (absl::Status added = AddSets(sets, assignments); !added.ok()) return added;
  const absl::StatusOr<std::string> working_folder = WorkingFolder();
  if (!working_folder.ok()) return working_folder.status();
  return Finish(ReadFlags(assignments), *working_folder, *working_folder);
}

absl::Status WithPlaces(const absl::Status& status, const SourceMap& sources) {
  if (!absl::IsInvalidArgument(status)) return status;
  const std::vector<Problem> problems = Locate(SpecErrorsOf(status), sources);
  return problems.empty() ? status : ToStatus(problems);
}

}  // namespace muster::cli
