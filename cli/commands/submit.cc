#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/job_array.h"
#include "cli/commands/submission.h"
#include "cli/job_file.h"

namespace muster::cli {

namespace {

// Submits a job for each combination, detached and named NAME-1, NAME-2, ..., after all of them were checked.
absl::StatusOr<ExitCode> SubmitArray(const Invocation& invocation, const std::vector<std::string>& files,
                                     const SetFlags& set, const std::string& name,
                                     const std::vector<std::string>& arrays, SubmitOptions options) {
  const absl::StatusOr<std::vector<std::vector<Assignment>>> combinations = Combinations(arrays);
  if (!combinations.ok()) return combinations.status();
  if (std::find(files.begin(), files.end(), "-") != files.end()) {
    return absl::InvalidArgumentError(
        "--array: the job file is read once for each job, so it cannot be standard input");
  }
  std::vector<Reading> readings;
  const TemplateText templates = TemplatesOf(invocation);
  for (const std::vector<Assignment>& combination : *combinations) {
    SetFlags all = set;
    all.varied = combination;
    const absl::StatusOr<Reading> first = LoadJobFiles(files, all, {}, templates);
    if (!first.ok()) return first.status();
    std::string base = name.empty() ? first->spec.name() : name;
    const std::string end = absl::StrCat("-", readings.size() + 1);
    if (base.size() + end.size() > 40) base.resize(40 - end.size());
    absl::StatusOr<Reading> reading = LoadJobFiles(files, all, {{"--name", "name", base + end}}, templates);
    if (!reading.ok()) return reading.status();
    readings.push_back(*std::move(reading));
  }
  options.detach = true;
  return SubmitSpecs(invocation, readings, options);
}

}  // namespace

void RegisterSubmit(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> files;
    std::string name;
    SetFlags set;
    std::vector<std::string> arrays;
    SubmitOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "submit", kGroupRun, "Submit a job file, and follow the job on a terminal",
                                 "muster submit job.yaml --set optimizer.lr=3e-4\n"
                                 "muster submit base.yaml larger.yaml\n"
                                 "muster submit job.yaml --template base\n"
                                 "muster submit job.yaml --array optimizer.lr=1e-3,3e-3 --array seed=1,2\n"
                                 "muster submit job.yaml --after @last\n"
                                 "id=$(muster submit -d job.yaml)");
  command->add_option("FILE", flags->files, "job files, - for standard input; later files override earlier ones")
      ->required();
  AddSetFlags(command, flags->set);
  command
      ->add_option("--array", flags->arrays,
                   "PATH=VALUE,VALUE,...: a job for each value, and for each combination of several")
      ->type_name("PATH=VALUES")
      ->allow_extra_args(false);
  command->add_option("--name", flags->name, "name of the job")->type_name("NAME");
  AddSubmitFlags(command, flags->options);
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    if (!flags->arrays.empty()) {
      return SubmitArray(invocation, flags->files, flags->set, flags->name, flags->arrays, flags->options);
    }
    std::vector<Assignment> assignments;
    if (!flags->name.empty()) assignments.push_back({"--name", "name", flags->name});
    const absl::StatusOr<Reading> reading =
        LoadJobFiles(flags->files, flags->set, assignments, TemplatesOf(invocation));
    if (!reading.ok()) return reading.status();
    return SubmitSpecs(invocation, {*reading}, flags->options);
  });
}

}  // namespace muster::cli
