#include "cli/commands/verb.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/output/format.h"
#include "common/flags/suggest.h"

namespace muster::cli {
namespace {

struct VerbFlags {
  std::vector<std::string> names;
  Format format = Format::kTable;
};

using Resolve = std::function<absl::StatusOr<std::string>(Client& client, const std::string& text)>;

// Not about one of the names: the coordinator is away, or Ctrl-C.
bool EndsAll(const absl::Status& status) { return absl::IsUnavailable(status) || absl::IsCancelled(status); }

// Does `one` for every name. The status of the first failure; if there are several names, all failures are printed.
absl::Status ForEach(const std::vector<std::string>& names,
                     const std::function<absl::Status(const std::string&)>& one) {
  absl::Status first;
  for (const std::string& text : names) {
    const absl::Status status = one(text);
    if (status.ok()) continue;
    if (names.size() == 1 || EndsAll(status)) return status;
    const bool named = absl::StartsWith(status.message(), text);
    Say(absl::StrCat("muster: ", named ? "" : absl::StrCat(OneLine(text), ": "), Lines(std::string(status.message()))));
    first.Update(status);
  }
  return first;
}

CLI::App* AddVerb(CLI::App& app, Invocation& invocation, const Verb& verb, const char* of, const char* what,
                  Resolve resolve, Apply apply, Check check) {
  const auto flags = std::make_shared<VerbFlags>();
  CLI::App* command = AddCommand(app, verb.name, kGroupSteer, verb.description, verb.example);
  command->add_option(of, flags->names, what)->required();
  AddFormat(command, flags->format, {"table", "json", "yaml", "name"});
  OnRun(command, invocation,
        [&invocation, flags, resolve = std::move(resolve), apply = std::move(apply),
         check = std::move(check)]() -> absl::StatusOr<ExitCode> {
          const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
          if (!client.ok()) return client.status();
          const bool several = flags->names.size() > 1;
          const auto ended = [&](const absl::Status& status) -> absl::StatusOr<ExitCode> {
            if (!status.ok() && (!several || EndsAll(status))) return status;  // not printed yet
            return status.ok() ? kOk : ExitCodeOf(status);
          };
          if (check != nullptr) {
            const absl::Status checked = ForEach(flags->names, [&](const std::string& text) {
              const absl::StatusOr<std::string> found = resolve(**client, text);
              return found.ok() ? check(**client, *found) : found.status();
            });
            if (!checked.ok()) {
              if (several) Say("nothing was done: fix the errors above, or leave those jobs out");
              return ended(checked);
            }
          }
          return ended(ForEach(flags->names, [&](const std::string& text) {
            const absl::StatusOr<std::string> found = resolve(**client, text);
            return found.ok() ? apply(**client, *found, flags->format) : found.status();
          }));
        });
  return command;
}

// The id of the one node that `text` names: its id or a prefix of it. NotFound; FailedPrecondition lists the nodes that
// match.
absl::StatusOr<std::string> NodeNamed(const std::string& text, const v1::ListNodesReply& nodes) {
  std::vector<std::string> ids, fitting;
  for (const v1::Node& node : nodes.nodes()) {
    if (node.id() == text) return text;
    ids.push_back(node.id());
    if (!text.empty() && absl::StartsWith(node.id(), text)) fitting.push_back(node.id());
  }
  if (fitting.size() == 1) return fitting.front();
  if (!fitting.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("\"", text, "\" matches ", fitting.size(),
                                                      " nodes: ", absl::StrJoin(fitting, ", "), ": name one of them"));
  }
  return CheckNamed(text, ids, "node", "muster nodes");
}

}  // namespace

absl::Status CheckNamed(const std::string& name, const std::vector<std::string>& names, const std::string& kind,
                        const std::string& lists) {
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  const std::string nearest = Nearest(name, names);
  return absl::NotFoundError(
      absl::StrCat("no ", kind, " \"", name, "\"",
                   nearest.empty() ? absl::StrCat("; see: ", lists) : absl::StrCat(", did you mean ", nearest, "?")));
}

CLI::App* AddJobVerb(CLI::App& app, Invocation& invocation, const Verb& verb, Apply apply, Check check) {
  return AddVerb(
      app, invocation, verb, "JOB", "ids, unique prefixes of ids, or @last",
      [&invocation](Client& client, const std::string& text) { return invocation.JobNamed(text, client); },
      std::move(apply), std::move(check));
}

CLI::App* AddNodeVerb(CLI::App& app, Invocation& invocation, const Verb& verb, Apply apply) {
  return AddVerb(
      app, invocation, verb, "NODE", "ids, or unique prefixes of ids (muster nodes)",
      [](Client& client, const std::string& text) -> absl::StatusOr<std::string> {
        const absl::StatusOr<v1::ListNodesReply> nodes = client.ListNodes();
        if (!nodes.ok()) return nodes.status();
        return NodeNamed(text, *nodes);
      },
      std::move(apply), /*check=*/nullptr);
}

}  // namespace muster::cli
