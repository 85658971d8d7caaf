#include "cli/commands/commands.h"
#include "cli/commands/verb.h"

namespace muster::cli {

void RegisterDrain(CLI::App& app, Invocation& invocation) {
  const Verb verb = {"drain", "Take a node out of use: its jobs checkpoint and move", "muster drain node-a"};
  AddNodeVerb(app, invocation, verb, [](Client& client, const std::string& name, Format format) {
    const absl::StatusOr<v1::DrainReply> reply = client.Drain(name);
    if (reply.ok()) PrintNode(reply->node(), format);
    return reply.status();
  });
}

}  // namespace muster::cli
