#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"

namespace muster::cli {

void RegisterDelete(CLI::App& app, Invocation& invocation) {
  const auto jobs = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      AddCommand(app, "delete", kGroupSteer, "Forget ended jobs, their events, metrics and logs; checkpoints stay",
                 "muster delete gpt2-tiny-x7f2");
  command->add_option("JOB", *jobs, "whole ids, or @last")->required();
  OnRun(command, invocation, [&invocation, jobs]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    for (const std::string& name : *jobs) {
      const absl::StatusOr<std::string> job = invocation.JobNamed(name, **client);
      if (!job.ok()) return job.status();
      // Deleting what is not there is fine for a retry, but a slip of the finger should be told.
      const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
      if (!got.ok()) return got.status();
      const absl::StatusOr<v1::DeleteReply> reply = (*client)->Delete(got->job().id());
      if (!reply.ok()) return reply.status();
      Say(absl::StrCat(got->job().id(), " deleted"));
    }
    return kOk;
  });
}

}  // namespace muster::cli
