#include <memory>

#include "cli/commands/commands.h"
#include "cli/job_file.h"
#include "cli/output/describe.h"
#include "cli/output/ownership.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterPlan(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> files;
    std::vector<std::string> sets;
    bool schedule = false;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "plan", kGroupRun, "Show what a job would need, before anything runs",
                                 "muster plan job.yaml --schedule");
  command->add_option("FILE", flags->files, "job files, - for standard input; later ones override")->required();
  command->add_option("--set", flags->sets, "PATH=VALUE: override a field; again for more")
      ->type_name("PATH=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--schedule", flags->schedule, "also the ops of a step");
  AddFormat(command, flags->format, {"table", "json", "yaml", "svg"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<Reading> reading = LoadJobFiles(flags->files, flags->sets, {});
    if (!reading.ok()) return reading.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    v1::PlanRequest request;
    *request.mutable_spec() = reading->spec;
    const absl::StatusOr<v1::PlanReply> plan = (*client)->Plan(request);
    if (!plan.ok()) return WithPlaces(plan.status(), reading->sources);
    if (flags->format == Format::kTable) {
      Print(DescribePlan(*plan, flags->schedule, invocation.Out()));
    } else if (flags->format == Format::kSvg) {
      const absl::StatusOr<std::string> picture = OwnershipSvg(*plan);
      if (!picture.ok()) return picture.status();
      Print(*picture);
    } else {
      PrintMessage(*plan, flags->format);
    }
    return kOk;
  });
}

}  // namespace muster::cli
