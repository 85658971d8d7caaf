#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterPause(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "pause", kGroupSteer, "Checkpoint and stop a job, and keep it out of the queue until resume",
                 "muster pause @last");
  AddJob(command, flags->job);
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    const absl::StatusOr<v1::PauseReply> reply = (*client)->Pause(*job);
    if (!reply.ok()) return reply.status();
    PrintJob(reply->job(), flags->format);
    return kOk;
  });
}

}  // namespace muster::cli
