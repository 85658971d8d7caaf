// Turns a job file and flags into a spec to send.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/command.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// The text of a template by its name. NotFound: there is none.
using TemplateText = std::function<absl::StatusOr<std::string>(const std::string& name)>;
// From the coordinator, each once. The invocation outlives it.
TemplateText TemplatesOf(const Invocation& invocation);

// What --set and --template say.
struct SetFlags {
  std::vector<std::string> sets;
  std::vector<Assignment> varied;  // after `sets`: what differs between the jobs of an array or a sweep
  std::string template_name;
};
void AddSetFlags(CLI::App* command, SetFlags& flags);

// `files`: at least one path, or "-" for standard input; later files override earlier ones, and all of them the
// template that `set`, `flags` or a file names. Problems of the form are in the reading: CheckJob (check_job.h) adds
// all others. Errors: a file that cannot be read, a --set that is no assignment, a template that is not there or cannot
// be fetched.
absl::StatusOr<Reading> LoadJobFiles(const std::vector<std::string>& files, const SetFlags& set,
                                     const std::vector<Assignment>& flags, const TemplateText& templates);
// Builds the spec from flags alone, likewise over a template.
absl::StatusOr<Reading> LoadFlags(const std::vector<Assignment>& flags, const SetFlags& set,
                                  const TemplateText& templates);

// The text of a file, or of standard input ("-"), with the name by which errors call it.
absl::StatusOr<SpecText> ReadJobFile(const std::string& file);

// The status of Submit or Plan: if the coordinator refused the spec, its errors with their locations; other errors
// unchanged.
absl::Status WithPlaces(const absl::Status& status, const SourceMap& sources);

}  // namespace muster::cli
