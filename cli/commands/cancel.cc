#include <unistd.h>

#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterCancel(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string job;
    bool yes = false;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "cancel", kGroupSteer, "End a job; it writes a checkpoint first if it can",
                                 "muster cancel -y gpt2-tiny-x7f2");
  AddJob(command, flags->job);
  command->add_flag("-y,--yes", flags->yes, "do not ask");
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    absl::StatusOr<std::string> job = invocation.JobNamed(flags->job, **client);
    if (!job.ok()) return job.status();
    // Only people are asked, and they are shown which job a prefix or @last means.
    if (!flags->yes && isatty(STDIN_FILENO) != 0) {
      const absl::StatusOr<v1::GetJobReply> got = (*client)->GetJob(*job);
      if (!got.ok()) return got.status();
      job = got->job().id();
      std::cerr << "cancel " << *job << " (" << StateName(got->job().state()) << ")? [y/N] " << std::flush;
      std::string answer;
      std::getline(std::cin, answer);
      if (answer != "y" && answer != "Y" && answer != "yes") {
        Say("not cancelled");
        return kOk;
      }
    }
    const absl::StatusOr<v1::CancelReply> reply = (*client)->Cancel(*job);
    if (!reply.ok()) return reply.status();
    PrintJob(reply->job(), flags->format);
    return kOk;
  });
}

}  // namespace muster::cli
