#include <memory>
#include <string>

#include "absl/status/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {

void RegisterCancel(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"cancel", "Stop a job for good; it writes a checkpoint first if it can",
                     "muster cancel gpt2-tiny-x7f2"};
  const auto yes = std::make_shared<bool>(false);
  CLI::App* command =
      AddJobVerb(app, invocation, verb, [yes](Client& client, const std::string& job, Format format) -> absl::Status {
        const absl::StatusOr<v1::CancelReply> reply = client.Cancel(job);
        if (reply.ok()) PrintJobs(*reply, format);
        return reply.status();
      });
  // Nothing is lost by it, so nothing is asked; scripts still say it.
  command->add_flag("-y,--yes", *yes, "has no effect: cancel does not ask");
}

}  // namespace muster::cli
