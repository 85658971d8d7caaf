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
  command->add_option("--state_dir", *state_dir, "the worker's state folder, on this machine")
      ->type_name("FOLDER")
      ->required();
  OnRun(command, invocation, [state_dir, choice]() -> absl::StatusOr<ExitCode> {
    char here[4096];
    const std::string folder = AbsolutePath(*state_dir, getcwd(here, sizeof here) == nullptr ? "/" : here);
    if (access(folder.c_str(), F_OK) != 0) return absl::NotFoundError(absl::StrCat("no folder ", folder));
    const std::string foreign = ReadForeignStore(folder);
    if (foreign.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat("the worker of ", folder, " refuses no coordinator, so there is nothing to choose"));
    }
    if (absl::Status status = WriteStoreChoice(folder, choice); !status.ok()) return status;
    Say(absl::StrCat(foreign, "\n", choice == StoreChoice::kAdopt ? "ranks that it does not know" : "all ranks here",
                     " end when the worker calls it again, within seconds"));
    return kOk;
  });
}

}  // namespace

void RegisterWorker(CLI::App& app, Invocation& invocation) {
  CLI::App* group =
      AddCommand(app, "worker", kGroupService, "Choose for a worker whose ranks belong to another coordinator's store",
                 "muster worker adopt --state_dir /var/lib/muster/worker");
  group->require_subcommand(1);
  RegisterChoice(*group, invocation, StoreChoice::kAdopt, "adopt",
                 "Belong to the coordinator's store: ranks that it does not know end",
                 "muster worker adopt --state_dir /var/lib/muster/worker");
  RegisterChoice(*group, invocation, StoreChoice::kReset, "reset",
                 "End all ranks, then belong to the coordinator's store",
                 "muster worker reset --state_dir /var/lib/muster/worker");
}

}  // namespace muster::cli
