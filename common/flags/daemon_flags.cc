#include "common/flags/daemon_flags.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/flags/spelling.h"

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
  app.formatter(help);
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) command->formatter(help);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return absl::StrCat(failed->get_name(), ": ", error.what(), "\nsee: ", failed->get_name(), " --help\n");
  });
  std::vector<std::string> arguments =
      KebabFlags({argv + std::min(argc, 1), argv + argc}, [&](const std::string& name) { return HasFlag(app, name); });
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return -1;
}

}  // namespace muster
