#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/config.h"
#include "cli/output/format.h"
#include "cli/spec/paths.h"
#include "common/file/store_files.h"
#include "common/metrics/endpoint.h"
#include "common/metrics/exposition.h"

namespace muster::cli {
namespace {

void RegisterChoice(CLI::App& app, Invocation& invocation, StoreChoice choice, const char* name, const char* what,
                    const char* example) {
  const auto state_dir = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, name, "Commands", what, example);
  command->add_option("--state-dir", *state_dir, "the worker's state folder, on this machine")
      ->type_name("FOLDER")
      ->required();
  OnRun(command, invocation, [state_dir, choice]() -> absl::StatusOr<ExitCode> {
    char here[4096];
    const std::string folder = AbsolutePath(*state_dir, getcwd(here, sizeof here) == nullptr ? "/" : here);
    if (access(folder.c_str(), F_OK) != 0) return absl::NotFoundError(absl::StrCat("no such folder: ", folder));
    const std::string foreign = ReadForeignStore(folder);
    if (foreign.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("nothing to decide: the worker of ", folder, " has met no other coordinator"));
    }
    if (absl::Status status = WriteStoreChoice(folder, choice); !status.ok()) return status;
    Say(absl::StrCat(
        foreign, "\n",
        choice == StoreChoice::kAdopt ? "ranks that the new coordinator does not know" : "all ranks on this node",
        " stop when the worker reconnects, within seconds"));
    return kOk;
  });
}

// Of 'muster_worker_build_info{version="0.1.0",node="gpu-3"} 1'.
std::string NodeOf(const std::string& page) {
  constexpr char kLabel[] = "muster_worker_build_info{version=";
  const size_t line = page.find(kLabel);
  const size_t begin = line == std::string::npos ? line : page.find(",node=\"", line);
  if (begin == std::string::npos) return "";
  const size_t name = begin + 7;
  return page.substr(name, page.find('"', name) - name);
}

// Healthy: the daemon's loop answers, and the coordinator is in contact with it.
absl::Status CheckPage(const std::string& page, const std::string& address) {
  const std::string node = OneLine(NodeOf(page));
  if (node.empty()) {
    return absl::UnavailableError(absl::StrCat("what serves metrics at ", address, " is not a muster-worker"));
  }
  if (SeriesValue(page, "muster_worker_foreign_store") == "1") {
    return absl::UnavailableError(absl::StrCat(
        node, " has ranks of another coordinator than the one at its address; see: muster worker adopt --help"));
  }
  if (SeriesValue(page, "muster_worker_connected") != "1") {
    double age = 0;
    const bool known = absl::SimpleAtod(SeriesValue(page, "muster_worker_contact_age_seconds"), &age);
    return absl::UnavailableError(absl::StrCat(node, " has no contact with its coordinator", known ? " for " : "",
                                               known ? Age(absl::Seconds(age)) : "",
                                               ": check --coordinator of the worker, and the network"));
  }
  const std::string ranks = SeriesValue(page, "muster_worker_ranks_running");
  Print(absl::StrCat(node, " is in contact with its coordinator; ranks running: ", ranks, "\n"));
  return absl::OkStatus();
}

void RegisterHealth(CLI::App& app, Invocation& invocation) {
  const auto address = std::make_shared<std::string>("127.0.0.1:9465");
  CLI::App* command =
      AddCommand(app, "health", "Commands", "Ask the worker daemon of this machine whether it is healthy",
                 "muster worker health --metrics-address 127.0.0.1:9465");
  command->add_option("--metrics-address", *address, "the worker's --metrics-address (default: 127.0.0.1:9465)")
      ->type_name("ADDRESS");
  command->footer(command->get_footer() + "\n\nExit code: 0 healthy, 3 no worker or no coordinator.");
  OnRun(command, invocation, [&invocation, address]() -> absl::StatusOr<ExitCode> {
    absl::Duration timeout = absl::Seconds(5);
    if (!invocation.flags.timeout.empty()) {
      const absl::StatusOr<absl::Duration> given = ParseTimeout(invocation.flags.timeout, "--timeout");
      if (!given.ok()) return given.status();
      timeout = *given;
    }
    const absl::StatusOr<std::string> page = FetchMetrics(*address, timeout);
    if (!page.ok()) return page.status();
    if (absl::Status healthy = CheckPage(*page, *address); !healthy.ok()) return healthy;
    return kOk;
  });
}

}  // namespace

void RegisterWorker(CLI::App& app, Invocation& invocation) {
  CLI::App* group =
      AddCommand(app, "worker", kGroupService, "Check the worker of this machine, or choose its coordinator",
                 "muster worker health\nmuster worker adopt --state-dir /var/lib/muster/worker");
  group->require_subcommand(1);
  RegisterHealth(*group, invocation);
  RegisterChoice(*group, invocation, StoreChoice::kAdopt, "adopt",
                 "Join the new coordinator; stop ranks that it does not know",
                 "muster worker adopt --state-dir /var/lib/muster/worker");
  RegisterChoice(*group, invocation, StoreChoice::kReset, "reset", "Stop all ranks, then join the new coordinator",
                 "muster worker reset --state-dir /var/lib/muster/worker");
}

}  // namespace muster::cli
