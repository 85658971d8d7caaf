#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/spec/paths.h"
#include "common/tls/trust_folder.h"

namespace muster::cli {
namespace {

// The given names, then the names by which the coordinator is always reached on its own machine, then this machine's
// names.
std::vector<std::string> WithOwnNames(std::vector<std::string> hosts) {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  for (const char* own : {static_cast<const char*>(name), "localhost", "127.0.0.1", "::1"}) {
    if (*own != '\0' && std::find(hosts.begin(), hosts.end(), own) == hosts.end()) hosts.emplace_back(own);
  }
  return hosts;
}

std::string NextSteps(const std::string& state_dir, const std::string& host, const std::string& socket) {
  return absl::StrCat(
      "next, on this machine:\n", "  muster-coordinator --state-dir ", state_dir, " --listen ", socket,
      " --listen 0.0.0.0:7070\n", "  muster coordinator token create --role worker -o join.token\n",
      "  muster coordinator token create --role submitter --user ann -o ann.token\n",
      "on each machine that runs ranks, with join.token (valid for an hour, for any number of machines):\n",
      "  muster-worker --coordinator ", host, ":7070 --join-token join.token --state-dir STATE --run-dir RUN\n",
      "where ann works, with ann.token:\n", "  muster --address ", host, ":7070 --token-file ann.token ps");
}

void RegisterInitCoordinator(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string state_dir;
    std::vector<std::string> hosts;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "init", "Commands", "Create the TLS authority and certificate, or renew the certificate",
                 "muster coordinator init --host gpu-head --host 10.0.0.5");
  command
      ->add_option("--state-dir,--state", flags->state_dir,
                   "the coordinator's state folder (default: muster/coordinator in the user's state folder)")
      ->type_name("FOLDER");
  command->add_option("--host", flags->hosts, "name or address that others use; may be repeated")->type_name("HOST");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    char here[4096];
    std::string state_dir = flags->state_dir;
    if (state_dir.empty()) {
      const absl::StatusOr<std::string> state = StateFolder(invocation.environment);
      if (!state.ok()) return state.status();
      state_dir = *state + "/coordinator";
    } else {
      state_dir = AbsolutePath(state_dir, getcwd(here, sizeof here) == nullptr ? "/" : here);
    }
    const absl::StatusOr<std::string> runtime = RuntimeFolder(invocation.environment);
    if (!runtime.ok()) return runtime.status();
    const bool again = tls::HasTrust(state_dir);
    if (absl::Status made = MakeFolders(state_dir); !made.ok()) return made;
    const std::vector<std::string> hosts = WithOwnNames(flags->hosts);
    const absl::StatusOr<tls::Trust> trust = tls::MakeTrust(state_dir, hosts, absl::Now());
    if (!trust.ok()) return trust.status();
    Print(absl::StrCat(tls::TrustFolderOf(state_dir), "\n"));
    Say(absl::StrCat("authority sha256:", trust->authority_facts.sha256, again ? ", as before" : ", new", "\n",
                     "server certificate for ", absl::StrJoin(trust->server_facts.hosts, ", "), ", until ",
                     absl::FormatTime("%Y-%m-%d", trust->server_facts.validity.end, absl::UTCTimeZone())));
    if (again) {
      Say("restart the coordinator to use it");
    } else {
      Say(NextSteps(state_dir, hosts.front(), absl::StrCat("unix:", *runtime, "/coordinator.sock")));
    }
    return kOk;
  });
}

void RegisterRevokeNode(CLI::App& app, Invocation& invocation) {
  const auto nodes = std::make_shared<std::vector<std::string>>();
  CLI::App* command =
      AddCommand(app, "revoke", "Commands", "Refuse a node's certificates; it may join again with a new key",
                 "muster coordinator revoke node-a");
  command->add_option("NODE", *nodes, "ids, whole (muster nodes)")->required();
  OnRun(command, invocation, [&invocation, nodes]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
    if (!client.ok()) return client.status();
    for (const std::string& node : *nodes) {
      const absl::StatusOr<v1::RevokeNodeReply> reply = (*client)->RevokeNode(node);
      if (!reply.ok()) return reply.status();
      Say(absl::StrCat(node, " revoked"));
    }
    return kOk;
  });
}

}  // namespace

void RegisterCoordinator(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "coordinator", kGroupService, "Give other machines and users access, over TLS",
                               "muster coordinator init --host gpu-head\n"
                               "muster coordinator token create --role worker -o join.token");
  group->require_subcommand(1);
  RegisterInitCoordinator(*group, invocation);
  RegisterCoordinatorTokens(*group, invocation);
  RegisterRevokeNode(*group, invocation);
}

}  // namespace muster::cli
