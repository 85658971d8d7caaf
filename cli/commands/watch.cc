#include <memory>

#include "cli/commands/commands.h"
#include "cli/follow_job.h"

namespace muster::cli {

void RegisterWatch(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    FollowOptions options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "watch", kGroupLook, "Follow a job to its end; Ctrl-C only detaches",
                                 "muster watch @last\nmuster watch gpt2-tiny-x7f2 -o json | jq .metrics.loss");
  AddJob(command, flags->job);
  command->add_flag("--logs", flags->options.logs, "also print the lines of its log");
  AddFormat(command, flags->options.format, {"table", "json"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    flags->options.timeout = (*client)->connection().timeout;
    return FollowJob(**client, *job, flags->options, invocation.Out());
  });
}

}  // namespace muster::cli
