#include <unistd.h>

#include <iostream>
#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/format.h"

namespace muster::cli {
namespace {

// Only interactive users are asked for confirmation; the prompt shows which job a prefix or @last resolves to.
bool Agrees(const v1::Job& job) {
  std::cerr << "cancel " << OneLine(job.id()) << " (" << StateName(job.state()) << ")? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

void RegisterCancel(CLI::App& app, Invocation& invocation) {
  const auto yes = std::make_shared<bool>(false);
  const Verb verb = {"cancel", "End a job; it writes a checkpoint first if it can", "muster cancel -y gpt2-tiny-x7f2"};
  CLI::App* command =
      AddJobVerb(app, invocation, verb, [yes](Client& client, const std::string& name, Format format) -> absl::Status {
        std::string job = name;
        if (!*yes && isatty(STDIN_FILENO) != 0) {
          const absl::StatusOr<v1::GetJobReply> got = client.GetJob(name);
          if (!got.ok()) return got.status();
          job = got->job().id();
          if (!Agrees(got->job())) {
            Say("not cancelled");
            return absl::OkStatus();
          }
        }
        const absl::StatusOr<v1::CancelReply> reply = client.Cancel(job);
        if (reply.ok()) PrintJob(reply->job(), format);
        return reply.status();
      });
  command->add_flag("-y,--yes", *yes, "do not ask");
}

}  // namespace muster::cli
