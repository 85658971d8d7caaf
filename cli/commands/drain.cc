#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/output_format.h"

namespace muster::cli {

void RegisterDrain(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string node;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "drain", kGroupSteer, "Take a node out of use: its jobs checkpoint and move",
                                 "muster drain node-a");
  command->add_option("NODE", flags->node, "id of the node (muster nodes)")->required();
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::DrainReply> reply = (*client)->Drain(flags->node);
    if (!reply.ok()) return reply.status();
    PrintNode(reply->node(), flags->format);
    return kOk;
  });
}

}  // namespace muster::cli
