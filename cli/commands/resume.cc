#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {

void RegisterResume(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"resume", "Queue a paused job again", "muster resume @last"};
  AddJobVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) {
    const absl::StatusOr<v1::ResumeReply> reply = client.Resume(name);
    if (reply.ok()) PrintJobs(*reply, format);
    return reply.status();
  });
}

}  // namespace muster::cli
