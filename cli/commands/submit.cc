#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/job_file.h"

namespace muster::cli {

void RegisterSubmit(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> files;
    std::string name;
    std::vector<std::string> sets;
    SubmitOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "submit", kGroupRun, "Submit a job file, and follow the job on a terminal",
                                 "muster submit job.yaml --set optimizer.lr=3e-4\n"
                                 "muster submit base.yaml larger.yaml\n"
                                 "id=$(muster submit -d job.yaml)");
  command->add_option("FILE", flags->files, "job files, - for standard input; later files override earlier ones")
      ->required();
  command->add_option("--set", flags->sets, "PATH=VALUE: override a field; may be repeated")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  command->add_option("--name", flags->name, "name of the job")->type_name("NAME");
  AddSubmitFlags(command, flags->options);
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    std::vector<Assignment> assignments;
    if (!flags->name.empty()) assignments.push_back({"--name", "name", flags->name});
    const absl::StatusOr<Reading> reading = LoadJobFiles(flags->files, flags->sets, assignments);
    if (!reading.ok()) return reading.status();
    return SubmitSpec(invocation, *reading, flags->options);
  });
}

}  // namespace muster::cli
