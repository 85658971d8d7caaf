#include <memory>

#include "cli/commands/commands.h"
#include "cli/commands/trainer_program.h"

namespace muster::cli {
namespace {

void RegisterModelInspect(CLI::App& app, Invocation& invocation) {
  struct Flags {
    std::string library;
    std::vector<std::string> options;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "inspect", "Commands", "Print a library's inventory, for model.inventory of a job file",
                 "muster model inspect ./libmine.so --option width=8 > mine.json");
  command->add_option("LIBRARY", flags->library, "built with libmuster-sdk; runs its code as your user")->required();
  command->add_option("--option", flags->options, "NAME=VALUE for the library; may be repeated")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false);
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    std::vector<std::string> arguments = {"inspect", flags->library};
    for (const std::string& option : flags->options) arguments.insert(arguments.end(), {"--option", option});
    return BecomeTrainer(invocation, std::move(arguments));
  });
}

}  // namespace

void RegisterModel(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "model", kGroupData, "Work with a custom model, in C++",
                               "muster model inspect ./libmine.so > mine.json");
  group->require_subcommand(1);
  RegisterModelInspect(*group, invocation);
}

}  // namespace muster::cli
