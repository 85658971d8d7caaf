#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/check_job.h"
#include "cli/commands/commands.h"
#include "cli/job_file.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "cli/spec/writer.h"

namespace muster::cli {

void RegisterValidate(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> files;
    SetFlags set;
    bool offline = false;
    bool resolved = false;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "validate", kGroupRun, "Check job files and report all errors at once",
                                 "muster validate job.yaml\nmuster validate --offline jobs/*.yaml");
  command->add_option("FILE", flags->files, "job files; - for standard input")->required();
  AddSetFlags(command, flags->set);
  command->add_flag("--offline", flags->offline, "check only names and types, without a coordinator");
  command->add_flag("--resolved", flags->resolved, "print the spec with every default filled in");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    absl::StatusOr<std::unique_ptr<Client>> connected = absl::UnavailableError("--offline");
    if (!flags->offline) {
      connected = invocation.Connect();
      if (!connected.ok()) return connected.status();
    }
    TemplateText templates = TemplatesOf(invocation);
    if (flags->offline) {
      templates = [](const std::string& name) -> absl::StatusOr<std::string> {
        return absl::FailedPreconditionError(
            absl::StrCat("template ", name, ": the coordinator has it, which --offline does not ask"));
      };
    }
    ExitCode worst = kOk;
    for (const std::string& file : flags->files) {
      const absl::StatusOr<Reading> reading = LoadJobFiles({file}, flags->set, {}, templates);
      absl::Status status = reading.status();
      std::vector<std::string> notes;
      if (status.ok()) status = CheckJob(*reading, connected);
      if (status.ok() && !flags->offline) {
        v1::PlanRequest request;
        *request.mutable_spec() = reading->spec;
        const absl::StatusOr<v1::PlanReply> plan = (*connected)->Plan(request);
        status = plan.ok() ? absl::OkStatus() : WithPlaces(plan.status(), reading->sources);
        if (plan.ok()) std::copy_if(plan->notes().begin(), plan->notes().end(), std::back_inserter(notes), IsIdleNote);
        if (plan.ok() && flags->resolved) Print(WriteSpec(plan->resolved()));
        if (absl::IsUnavailable(status)) {
          Say(absl::StrCat(file, ": names and types are valid; values were not checked"));
          return status;
        }
      }
      if (!status.ok()) {
        SayError(status);
        worst = ExitCodeOf(status);
      } else {
        Say(absl::StrCat(file, ": valid", flags->offline ? " names and types" : ""));
        for (const std::string& note : notes) Say(absl::StrCat(file, ": note: ", OneLine(note)));
      }
    }
    return worst;
  });
}

}  // namespace muster::cli
