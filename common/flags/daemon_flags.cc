#include "common/flags/daemon_flags.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/file_error.h"
#include "common/flags/spelling.h"
#include "common/flags/suggest.h"

namespace muster {
namespace {

class DaemonHelp final : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool positional) const override {
    if (positional) return option->get_name(true, false);
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    return absl::StrJoin(names, ", ");
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string value = ValueOf(*option);
    return value.empty() ? "" : " " + value;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    std::string text = option->get_description();
    if (!option->get_default_str().empty()) absl::StrAppend(&text, " (default ", option->get_default_str(), ")");
    if (option->get_required()) absl::StrAppend(&text, " (required)");
    return text;
  }
};

bool HasFlag(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  return app.get_option_no_throw("--" + name) != nullptr ||
         std::any_of(commands.begin(), commands.end(), [&](const CLI::App* c) { return HasFlag(*c, name); });
}

// Of the program and of the command that is run, without dashes.
std::vector<std::string> OptionNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options({})) {
    names.insert(names.end(), option->get_lnames().begin(), option->get_lnames().end());
  }
  for (const CLI::App* command : app.get_subcommands()) {
    const std::vector<std::string> more = OptionNames(*command);
    names.insert(names.end(), more.begin(), more.end());
  }
  return names;
}

std::string DidYouMean(const std::string& meant) {
  return meant.empty() ? "" : absl::StrCat(", did you mean ", meant, "?");
}

bool IsOption(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && word != "--" && !absl::ascii_isdigit(static_cast<unsigned char>(word[1]));
}

// A misspelled flag or command is the reason why another one is missing, and its value is not a mistake of its own.
// Empty: all words are known.
std::string UnknownWord(const CLI::App& app) {
  const std::vector<std::string> unknown = app.remaining(/*recurse=*/true);
  if (unknown.empty()) return "";
  const auto option = std::find_if(unknown.begin(), unknown.end(), IsOption);
  if (option != unknown.end()) {
    const std::string flag = option->substr(0, option->find('='));
    const std::string meant = Nearest(absl::StripPrefix(absl::StripPrefix(flag, "-"), "-"), OptionNames(app));
    return absl::StrCat("unknown option ", flag, DidYouMean(meant.empty() ? "" : absl::StrCat("--", meant)));
  }
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  if (commands.empty() || !app.get_subcommands().empty()) return absl::StrCat("unknown argument ", unknown.front());
  return absl::StrCat("unknown command ", unknown.front(), DidYouMean(Nearest(unknown.front(), commands)));
}

std::string Refusal(const CLI::App& app, const CLI::ParseError& error) {
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (missing || dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    if (std::string unknown = UnknownWord(app); !unknown.empty()) return unknown;
  }
  return InOurWords(error);
}

}  // namespace

std::string ValueOf(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0 || option.get_type_size() == 0) return "";
  std::string type = option.get_type_name();
  // CLI11 appends what its checks say: "TEXT:{nanogpt,llmc}", "UINT:INT in [1 - 20]".
  const size_t checks = type.find(':');
  const size_t begin = type.find('{'), end = type.rfind('}');
  const bool plain = type.compare(0, 4, "TEXT") == 0;
  if (plain && begin != std::string::npos && end != std::string::npos && begin < end) {
    return absl::StrReplaceAll(type.substr(begin + 1, end - begin - 1), {{",", "|"}});
  }
  type = type.substr(0, checks);
  if (type == "TEXT") return option.get_positional() ? "" : "VALUE";
  if (type == "UINT" || type == "INT") return "N";
  if (type == "FLOAT") return "X";
  return type;
}

std::string InOurWords(const CLI::ParseError& error) {
  const std::string message = error.what();
  absl::string_view rest = message;
  const auto split = [&](absl::string_view at) -> std::pair<absl::string_view, absl::string_view> {
    return absl::StrSplit(rest, absl::MaxSplits(at, 1));
  };
  if (absl::ConsumePrefix(&rest, "Could not convert: ")) {
    const auto [name, value] = split(" = ");
    double number = 0;
    if (!value.empty() && value.find_first_not_of("0123456789") == absl::string_view::npos) {
      return absl::StrCat(name, ": ", value, " is too large");
    }
    return absl::StrCat(name, ": must be a ",
                        absl::SimpleAtod(value, &number) ? "whole number of at least 0" : "number", ", got ", value);
  }
  if (message == "A subcommand is required") return kCommandMissing;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const absl::string_view all = split(": ").second, first = all.substr(0, all.find(' '));
    return absl::StrCat(absl::StartsWith(first, "-") ? "unknown option " : "unknown argument ", first);
  }
  if (dynamic_cast<const CLI::ExcludesError*>(&error) != nullptr) {
    const auto [name, other] = split(" excludes ");
    return absl::StrCat(name, " cannot be used with ", other);
  }
  if (dynamic_cast<const CLI::RequiresError*>(&error) != nullptr) {
    const auto [name, other] = split(" requires ");
    return absl::StrCat(name, " needs ", other);
  }
  const auto [name, text] = split(": ");
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  // "Value 5 not in range 1 to 4", "loud not in {info,warn}"
  if (words.size() == 8 && words[0] == "Value" && words[4] == "range") {
    return absl::StrCat(name, ": must be a number from ", words[5], " to ", words[7], ", got ", words[1]);
  }
  if (const size_t set = text.find(" not in {"); set != absl::string_view::npos) {
    const absl::string_view listed = absl::StripSuffix(text.substr(set + sizeof(" not in {") - 1), "}");
    return absl::StrCat(name, ": \"", text.substr(0, set), "\" is not one of ",
                        absl::StrReplaceAll(listed, {{",", ", "}}));
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) == nullptr) return message;
  // "At least 2 required but received 1", "At Most 1 required but received 2"
  if (words.size() == 7 && absl::StartsWith(text, "At least ")) {
    return absl::StrCat(name, ": at least ", words[2], " are needed, got ", words[6]);
  }
  if (words.size() == 7 && absl::StartsWith(text, "At Most ")) {
    return words[2] == "1" ? absl::StrCat(name, " takes one value, got ", words[6])
                           : absl::StrCat(name, " takes at most ", words[2], " values, got ", words[6]);
  }
  return absl::EndsWith(text, " missing") ? absl::StrCat(name, " needs a value") : message;
}

CLI::Option* AddDuration(CLI::App& app, const std::string& name, absl::Duration& value, const std::string& what) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, name](const std::string& text) {
            if (!absl::ParseDuration(text, &value) || value <= absl::ZeroDuration()) {
              throw CLI::ValidationError(
                  name, absl::StrCat("invalid duration \"", text, "\": use 500ms, 30s or 10m, greater than 0"));
            }
          },
          what)
      ->type_name("TIME")
      ->default_str(absl::FormatDuration(value));
}

int ParseFlags(CLI::App& app, int argc, char** argv) {
  const auto help = std::make_shared<DaemonHelp>();
  help->column_width(34);
  std::vector<CLI::App*> commands = app.get_subcommands([](CLI::App*) { return true; });
  commands.push_back(&app);
  for (CLI::App* command : commands) {
    command->formatter(help);
    if (command->get_help_ptr() != nullptr) command->get_help_ptr()->description("show this page");
  }
  if (app.get_version_ptr() != nullptr) app.get_version_ptr()->description("show this program's version and exit");
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return absl::StrCat(failed->get_name(), ": ", Refusal(*failed, static_cast<const CLI::ParseError&>(error)),
                        "\nsee: ", failed->get_name(), " --help\n");
  });
  std::vector<std::string> arguments =
      KebabFlags({argv + std::min(argc, 1), argv + argc}, [&](const std::string& name) { return HasFlag(app, name); });
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return 2;
    const absl::Status printed = FlushStandardOutput();
    if (printed.ok()) return 0;
    std::cerr << app.get_name() << ": " << printed.message() << "\n";
    return 1;
  }
  return -1;
}

}  // namespace muster
