#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/output/describe.h"
#include "cli/output/format.h"
#include "cli/output_format.h"
#include "common/message/tree.h"

namespace muster::cli {

void RegisterNodes(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command = AddCommand(app, "nodes", kGroupLook, "List nodes and their slots", "muster nodes -o wide");
  AddFormat(command, *format, {"table", "wide", "json", "yaml", "name"});
  const Verb forget = {"forget", "Remove nodes that are lost and will not come back from the list",
                       "muster nodes forget node-c"};
  AddNodeVerb(*command, invocation, forget, [](Client& client, const std::string& name, Format) {
    const absl::Status forgotten = client.Forget(name);
    if (forgotten.ok()) Say(absl::StrCat(name, ": forgotten"));
    return forgotten;
  });
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    const absl::StatusOr<v1::ListNodesReply> reply = (*client)->ListNodes();
    if (!reply.ok()) return reply.status();
    if (*format == Format::kJson || *format == Format::kYaml) {
      PrintTree(MessageTree(*reply)["nodes"], *format);
    } else if (*format == Format::kName) {
      for (const v1::Node& node : reply->nodes()) Print(node.id() + "\n");
    } else if (reply->nodes().empty()) {
      Say("no nodes: start one with: muster local up   or muster-worker --coordinator ADDRESS");
    } else {
      const bool wide = *format == Format::kWide;
      const Screen out = invocation.Out();
      const Table table = NodeTable(*reply, wide, absl::Now());
      Print(wide ? table.RenderOrBlocks(out) : table.Render(out));
      if (const std::string notes = NodeNotes(*reply); !notes.empty())
        Print(absl::StrCat("\n", Wrapped(notes, out.width)));
      std::vector<v1::NodeLink> links;
      for (const v1::Node& node : reply->nodes()) {
        for (const v1::NodeLink& link : node.links()) links.emplace_back(link).set_from(node.id());
      }
      if (wide && !links.empty()) {
        Print(absl::StrCat("\n", LinkTable(links, absl::Now()).Render(out)));
      }
    }
    return kOk;
  });
}

}  // namespace muster::cli
