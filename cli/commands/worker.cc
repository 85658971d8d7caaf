#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/commands/verb.h"
#include "cli/spec/paths.h"
#include "common/file/store_files.h"

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

}  // namespace

void RegisterWorker(CLI::App& app, Invocation& invocation) {
  CLI::App* group =
      AddCommand(app, "worker", kGroupService, "Decide what a worker with ranks of another coordinator does",
                 "muster worker adopt --state-dir /var/lib/muster/worker");
  group->require_subcommand(1);
  RegisterChoice(*group, invocation, StoreChoice::kAdopt, "adopt",
                 "Join the new coordinator; stop ranks that it does not know",
                 "muster worker adopt --state-dir /var/lib/muster/worker");
  RegisterChoice(*group, invocation, StoreChoice::kReset, "reset", "Stop all ranks, then join the new coordinator",
                 "muster worker reset --state-dir /var/lib/muster/worker");
}

}  // namespace muster::cli
