#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {

void RegisterUndrain(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"undrain", "Put a drained node back into use", "muster undrain node-a"};
  AddNodeVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) {
    const absl::StatusOr<v1::UndrainReply> reply = client.Undrain(name);
    if (reply.ok()) PrintNode(reply->node(), format);
    return reply.status();
  });
}

}  // namespace muster::cli
