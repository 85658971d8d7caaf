#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/app.h"
#include "cli/commands/commands.h"
#include "cli/help_page.h"
#include "cli/output/format.h"

namespace muster::cli {

void RegisterHelp(CLI::App& app, Invocation& invocation) {
  const auto words = std::make_shared<std::vector<std::string>>();
  CLI::App* command = AddCommand(app, "help", kGroupService, "Show the help page of a command",
                                 "muster help submit\nmuster help data prepare");
  command->add_option("COMMAND", *words, "a command, and those below it");
  OnRun(command, invocation, [&invocation, words]() -> absl::StatusOr<ExitCode> {
    // A parsed App shows the help of the command that was parsed.
    Invocation other;
    const std::unique_ptr<CLI::App> fresh = BuildApp(other);
    const CLI::App* at = fresh.get();
    std::string above = "muster";
    for (const std::string& word : *words) {
      const CLI::App* next = nullptr;
      for (const CLI::App* below : at->get_subcommands({})) {
        if (below->get_name() == word) next = below;
      }
      if (next == nullptr) {
        const std::string meant = MeantCommand(*at, word);
        return absl::InvalidArgumentError(absl::StrCat("unknown command ", OneLine(word),
                                                       meant.empty() ? "" : absl::StrCat(", did you mean ", meant, "?"),
                                                       "\nsee: ", above, " --help"));
      }
      at = next;
      absl::StrAppend(&above, " ", word);
    }
    // The page's name is the whole command.
    std::string name;
    for (const CLI::App* up = at->get_parent(); up != nullptr; up = up->get_parent()) {
      name = absl::StrCat(up->get_name(), name.empty() ? "" : " ", name);
    }
    Print(FittedPage(at->help(name), invocation.Out().width));
    return kOk;
  });
}

}  // namespace muster::cli
