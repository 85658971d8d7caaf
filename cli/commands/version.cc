#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/message/tree.h"
#include "common/version.h"

namespace muster::cli {

void RegisterVersion(CLI::App& app, Invocation& invocation) {
  struct Flags {
    bool client = false;
    Format format = Format::kTable;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command = AddCommand(app, "version", kGroupService, "Show the versions of this program and the coordinator",
                                 "muster version -o json");
  command->add_flag("--client", flags->client, "do not ask the coordinator");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    absl::StatusOr<v1::VersionReply> server = absl::UnavailableError("");
    if (!flags->client) {
      const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
      if (!client.ok()) return client.status();
      server = (*client)->Version();
    }
    if (flags->format == Format::kTable) {
      const int columns = invocation.Out().width;
      Print(Wrapped(absl::StrCat("muster ", kVersion, " (protocol ", kProtocol, ")\n"), columns));
      if (server.ok()) {
        Print(Wrapped(absl::StrCat("coordinator ", OneLine(server->version()), " (protocol ", server->protocol(),
                                   ", state in ", OneLine(server->state_directory()), ")\n"),
                      columns));
      }
    } else {
      nlohmann::ordered_json tree;
      tree["client"] = {{"version", kVersion}, {"protocol", kProtocol}};
      if (server.ok()) tree["server"] = MessageTree(*server);
      PrintTree(tree, flags->format);
    }
    if (!flags->client && !server.ok()) return server.status();
    return kOk;
  });
}

}  // namespace muster::cli
