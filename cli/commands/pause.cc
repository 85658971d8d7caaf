#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {

void RegisterPause(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"pause", "Checkpoint and stop a job, and keep it out of the queue until resume",
                     "muster pause @last"};
  AddJobVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) {
    const absl::StatusOr<v1::PauseReply> reply = client.Pause(name);
    if (reply.ok()) PrintJobs(*reply, format);
    return reply.status();
  });
}

}  // namespace muster::cli
