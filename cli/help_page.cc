#include "cli/help_page.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "cli/output/format.h"
#include "common/flags/daemon_flags.h"

namespace muster::cli {
namespace {

// "--address, --token-file FILE, ..." of the root's flags, each under its first name.
std::string GlobalFlags(const CLI::App* app) {
  while (app->get_parent() != nullptr) app = app->get_parent();
  std::vector<std::string> flags;
  for (const CLI::Option* option : app->get_options()) {
    if (option->get_group() == kGroupGlobal) flags.push_back("--" + option->get_lnames().front());
  }
  return absl::StrJoin(flags, ", ");
}

}  // namespace

std::string HelpPage::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  if (mode == CLI::AppFormatMode::Sub) return make_expanded(app);
  std::string page = make_description(app) + make_usage(app, name) +
                     absl::StrReplaceAll(make_positionals(app), {{"\nPositionals:\n", "\nArguments:\n"}});
  if (app->get_parent() == nullptr) {
    absl::StrAppend(&page, make_subcommands(app, mode), make_groups(app, mode));
  } else {
    absl::StrAppend(&page, make_groups(app, mode), make_subcommands(app, mode),
                    "\nGlobal flags (muster --help): ", GlobalFlags(app), "\n");
  }
  absl::StrAppend(&page, "\n", app->get_footer(), "\n");
  return absl::StrReplaceAll(page, {{"\n\n\n", "\n\n"}});
}

std::string FittedPage(const std::string& page, int columns) {
  std::string out;
  for (const absl::string_view line : absl::StrSplit(absl::StripSuffix(page, "\n"), '\n')) {
    const std::string whole = absl::StrCat(line, "\n");
    if (absl::StartsWith(line, "  muster ")) {  // an example to copy
      out += whole;
      continue;
    }
    const bool described = line.size() > kHelpColumn && absl::StartsWith(line, "  ") &&
                           absl::EndsWith(line.substr(0, kHelpColumn), "  ") && line[kHelpColumn] != ' ';
    out += Wrapped(whole, columns, described ? kHelpColumn : -1);
  }
  return out;
}

std::string HelpPage::make_option_name(const CLI::Option* option, bool positional) const {
  if (positional) return option->get_name(true, false);
  std::vector<std::string> names;
  for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return absl::StrJoin(names, ", ");
}

std::string HelpPage::make_option_opts(const CLI::Option* option) const {
  const std::string value = ValueOf(*option);
  return value.empty() ? "" : " " + value;
}

std::string HelpPage::make_option_desc(const CLI::Option* option) const {
  std::string text = option->get_description();
  if (!option->get_default_str().empty()) absl::StrAppend(&text, " (default ", option->get_default_str(), ")");
  if (option->get_required() && !option->get_positional()) absl::StrAppend(&text, " (required)");
  return text;
}

// "JOB...", where CLI11 counts: "JOB(2x)".
std::string HelpPage::make_option_usage(const CLI::Option* option) const {
  const std::string usage = absl::StrCat(make_option_name(option, true), option->get_expected_max() > 1 ? "..." : "");
  return option->get_required() ? usage : absl::StrCat("[", usage, "]");
}

std::string HelpPage::make_usage(const CLI::App* app, std::string name) const {
  return absl::StrReplaceAll(CLI::Formatter::make_usage(app, name),
                             {{"[OPTIONS]", "[FLAGS]"}, {"[SUBCOMMAND]", "[COMMAND]"}, {"SUBCOMMAND", "COMMAND"}});
}

}  // namespace muster::cli
