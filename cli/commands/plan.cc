#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "cli/check_job.h"
#include "cli/commands/commands.h"
#include "cli/job_file.h"
#include "cli/output/describe.h"
#include "cli/output/ownership.h"
#include "cli/output/timeline.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

absl::Status CheckStage(const std::optional<uint32_t>& stage, const v1::PlanReply& plan) {
  const int stages = plan.stages_size();
  if (!stage.has_value() || *stage < static_cast<uint32_t>(stages)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--stage ", *stage, ": ",
                                                 stages == 0 ? "this job has no stages (parallel.pipeline)"
                                                             : absl::StrCat("this job has stages 0 to ", stages - 1)));
}

}  // namespace

void RegisterPlan(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::vector<std::string> files;
    SetFlags set;
    PlanSections parts;
    std::string hardware, timeline;
    uint64_t memory_bytes = 0;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "plan", kGroupRun, "Show the memory, placement and schedule of a job, before it runs",
                 "muster plan job.yaml --schedule");
  command->add_option("FILE", flags->files, "job files, - for standard input; later files override earlier ones")
      ->required();
  AddSetFlags(command, flags->set);
  command->add_flag("--schedule", flags->parts.schedule, "also show the ops of a step, with their times and memory");
  command->add_option("--stage", flags->parts.stage, "with --schedule: only the ops of this stage of a pipeline")
      ->type_name("N");
  command->add_option("--timeline", flags->timeline, "also write a picture of the predicted step (SVG)")
      ->type_name("FILE");
  command->add_flag("--simulate", flags->parts.times, "also predict how long a step would take");
  command->add_flag("--timeouts", flags->parts.timeouts, "also list the time-outs of the job");
  AddHardware(command, flags->hardware, "hardware to predict times for", " (default: that of the nodes)");
  command
      ->add_option("--memory", flags->memory_bytes,
                   "memory of every slot: 80GB, or 74.5GiB (default: that of the nodes)")
      ->transform(CLI::Validator(TakeSize, ""))
      ->type_name("SIZE");
  AddFormat(command, flags->format, {"table", "json", "yaml", "svg"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<Reading> reading = LoadJobFiles(flags->files, flags->set, {}, TemplatesOf(invocation));
    if (!reading.ok()) return reading.status();
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    // A plan needs no data, so that its files may come later.
    if (!reading->problems.empty()) return CheckJob(*reading, client);
    if (!client.ok()) return client.status();
    if (absl::Status output = flags->timeline.empty() ? absl::OkStatus() : CheckOutput(flags->timeline); !output.ok()) {
      return output;
    }
    flags->parts.schedule |= flags->parts.stage.has_value();
    v1::PlanRequest request;
    *request.mutable_spec() = reading->spec;
    request.set_hardware(flags->hardware);
    request.set_memory_bytes(flags->memory_bytes);
    request.set_ops(flags->parts.schedule || flags->format == Format::kSvg || !flags->timeline.empty());
    flags->parts.times |= !flags->hardware.empty();
    const absl::StatusOr<v1::PlanReply> plan = (*client)->Plan(request);
    if (!plan.ok()) return WithPlaces(plan.status(), reading->sources);
    if (absl::Status status = CheckStage(flags->parts.stage, *plan); !status.ok()) return status;
    if (!flags->timeline.empty()) {
      const absl::StatusOr<std::string> picture = TimelineSvg(*plan);
      if (!picture.ok()) return picture.status();
      if (absl::Status written = WriteOutput(flags->timeline, *picture); !written.ok()) return written;
    }
    if (flags->format == Format::kTable) {
      Print(DescribePlan(*plan, flags->parts, invocation.Out()));
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
