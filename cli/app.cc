#include "cli/app.h"

#include <CLI/Config.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "cli/commands/commands.h"
#include "cli/completion.h"
#include "cli/help_page.h"
#include "cli/output/format.h"
#include "cli/spec/source_text.h"
#include "common/file_error.h"
#include "common/flags/daemon_flags.h"
#include "common/flags/spelling.h"
#include "common/flags/suggest.h"
#include "common/version.h"

namespace muster::cli {
namespace {

constexpr char kRun[] = "run";
constexpr char kJobArgument[] = "JOB";
constexpr char kDescription[] = "Muster trains neural networks as a service.";
constexpr char kFooter[] =
    "Example: muster local up; muster train --model gpt2:tiny --data train.bin --steps 1000; muster watch @last\n"
    "More about a command: muster help COMMAND. Exit codes: 0 ok, 1 job failed, 2 usage or invalid spec,\n"
    "3 no connection, 4 not allowed, 5 timed out, 6 job cancelled, 130 Ctrl-C.";

// The names of all options of a command and its parents; unknown options fall through to the parents.
std::vector<std::string> OptionsOf(const CLI::App* app) {
  std::vector<std::string> names;
  for (; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

std::vector<std::string> CommandsOf(const CLI::App* app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app->get_subcommands({})) names.push_back(command->get_name());
  return names;
}

// Whether the argument after `argument`, which names the option, is its value.
bool TakesNext(const CLI::Option& option, const std::string& argument) {
  return option.get_items_expected_max() > 0 && !absl::StrContains(argument, "=");
}

// `muster run` takes a program and its arguments without `--` before them, as torchrun does: adds it. The first word
// that is neither an option of `run` nor the value of one is the program.
std::vector<std::string> WithProgramMarked(const CLI::App& app, std::vector<std::string> arguments) {
  const CLI::App* at = &app;
  for (auto word = arguments.begin(); word != arguments.end(); ++word) {
    if (*word == "--") break;
    if (word->size() > 1 && (*word)[0] == '-') {
      std::string name = word->substr(0, word->find('='));
      std::replace(name.begin() + static_cast<ptrdiff_t>(std::min<size_t>(2, name.size())), name.end(), '_', '-');
      const CLI::Option* option = at->get_option_no_throw(name);
      if (option == nullptr) option = app.get_option_no_throw(name);
      if (option != nullptr && TakesNext(*option, *word) && word + 1 != arguments.end()) ++word;
    } else if (at != &app) {
      arguments.insert(word, "--");
      break;
    } else if (*word == kRun) {
      at = app.get_subcommand(kRun);
    } else {
      break;
    }
  }
  return arguments;
}

// The long names of all options of all commands.
std::set<std::string> KnownOptions(const CLI::App& app) {
  std::set<std::string> names;
  std::vector<const CLI::App*> all = {&app};
  for (size_t i = 0; i < all.size(); ++i) {
    for (const CLI::Option* option : all[i]->get_options()) {
      for (const std::string& name : option->get_lnames()) names.insert(name);
    }
    for (const CLI::App* command : all[i]->get_subcommands({})) all.push_back(command);
  }
  return names;
}

// Also accepts the flags of all commands with underscores.
std::vector<std::string> WithKnownDashes(const CLI::App& app, std::vector<std::string> arguments) {
  const std::set<std::string> names = KnownOptions(app);
  return KebabFlags(std::move(arguments), [&](const std::string& name) { return names.contains(name); });
}

// "--name" of the first `--name=`, for which CLI11 would take the next argument as the value. Empty: there is none.
std::string EmptyAfterEquals(const CLI::App& app, const std::vector<std::string>& arguments) {
  const std::set<std::string> names = KnownOptions(app);
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (!absl::StartsWith(argument, "--") || argument.find('=') != argument.size() - 1) continue;
    if (names.contains(argument.substr(2, argument.size() - 3))) return argument.substr(0, argument.size() - 1);
  }
  return "";
}

// The subcommand that was parsed.
const CLI::App* Reached(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return at;
}

// For shell completion: the shell waits for at most a second.
std::vector<Candidate> LiveNames(Invocation& invocation, const std::vector<std::string>& words, Named what) {
  for (size_t i = 0; i + 2 < words.size(); ++i) {
    if (words[i] == "--address" || words[i] == "--coordinator") invocation.flags.address = words[i + 1];
    if (words[i] == "--ca") invocation.flags.ca = words[i + 1];
    if (words[i] == "--token-file" || words[i] == "--token") invocation.flags.token_file = words[i + 1];
  }
  invocation.flags.timeout = "1s";
  std::vector<Candidate> names;
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  if (!client.ok()) return names;
  if (what == Named::kTemplates) {
    const absl::StatusOr<v1::ListTemplatesReply> templates = (*client)->ListTemplates();
    if (!templates.ok()) return names;
    for (const v1::Template& found : templates->templates()) names.push_back({found.name(), found.owner()});
  } else if (what == Named::kJobs || what == Named::kLiveJobs) {
    const absl::StatusOr<v1::ListJobsReply> jobs = (*client)->ListJobs(/*all=*/what == Named::kJobs);
    if (!jobs.ok()) return names;
    for (const v1::JobSummary& summary : jobs->jobs()) {
      names.push_back({summary.job().id(), StateName(summary.job().state())});
    }
  } else {
    const absl::StatusOr<v1::ListNodesReply> nodes = (*client)->ListNodes();
    if (!nodes.ok()) return names;
    for (const v1::Node& node : nodes->nodes()) names.push_back({node.id(), StateName(node.state())});
  }
  return names;
}

// The first argument before any command that is neither an option of `app` nor the value of one. Empty: none.
std::string FirstUnknown(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.size() < 2 || argument[0] != '-') return argument;
    const CLI::Option* option = app.get_option_no_throw(argument.substr(0, argument.find('=')));
    if (option == nullptr) return argument;
    if (TakesNext(*option, argument)) ++i;
  }
  return "";
}

// The first that neither the command nor the whole program has, when another error hides it. Empty: none.
std::string UnknownOption(const CLI::App& app, const CLI::App& at, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument.size() < 2 || argument[0] != '-' || absl::ascii_isdigit(static_cast<unsigned char>(argument[1])))
      continue;
    const bool is_short = argument[1] != '-';
    std::string name = is_short ? argument.substr(0, 2) : argument.substr(0, argument.find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (at.get_option_no_throw(name) == nullptr && app.get_option_no_throw(name) == nullptr) return argument;
  }
  return "";
}

// Prints what is wrong with the command line, and where its help is.
int Refuse(const CLI::App& at, const std::string& message, const std::string& suggestion) {
  Say(absl::StrCat("muster: ", message, suggestion.empty() ? "" : absl::StrCat(", did you mean ", suggestion, "?")));
  std::string name;
  for (const CLI::App* part = &at; part->get_parent() != nullptr; part = part->get_parent()) {
    name = absl::StrCat(" ", part->get_name(), name);
  }
  Say(absl::StrCat("see: muster", name, " --help"));
  return kUsage;
}

// The word that stands where a command below `at`, the command reached, should be. Empty: none.
std::string UnknownCommand(const CLI::App& app, const CLI::App& at) {
  const std::vector<std::string> rest = app.remaining(true);
  return rest.empty() || absl::StartsWith(rest.front(), "-") || CommandsOf(&at).empty() ? "" : rest.front();
}

// What commands of other systems are called here.
constexpr std::pair<absl::string_view, absl::string_view> kElsewhere[] = {
    {"apply", "submit"}, {"create", "submit"}, {"get", "ps"},      {"kill", "cancel"},    {"list", "ps"},
    {"ls", "ps"},        {"queue", "ps"},      {"rm", "delete"},   {"sbatch", "submit"},  {"scancel", "cancel"},
    {"sinfo", "nodes"},  {"squeue", "ps"},     {"srun", "submit"}, {"start", "local up"}, {"status", "local status"},
    {"stop", "cancel"},  {"torchrun", "run"},
};

// The full names of the commands below `at`'s own, by their last words: "checkpoint import" by "import".
std::multimap<std::string, std::string> DeeperCommands(const CLI::App& at) {
  std::multimap<std::string, std::string> found;
  for (const CLI::App* command : at.get_subcommands({})) {
    for (const CLI::App* below : command->get_subcommands({})) {
      found.emplace(below->get_name(), absl::StrCat(command->get_name(), " ", below->get_name()));
    }
  }
  return found;
}

// What is given with an empty value that may not be: "--name is empty". Empty: nothing is.
std::string GivenEmpty(const CLI::App& at, const std::set<const CLI::Option*>& may_be_empty) {
  for (const CLI::App* part = &at; part != nullptr; part = part->get_parent()) {
    for (const CLI::Option* option : part->get_options()) {
      const std::vector<std::string>& values = option->results();
      if (std::find(values.begin(), values.end(), "") == values.end() || may_be_empty.contains(option)) continue;
      const std::string name = option->get_name();
      return absl::StrCat(name, " is empty",
                          name == kJobArgument ? ": give its id, a unique prefix of it, or @last" : "");
    }
  }
  return "";
}

// What an option takes that is no part of a request: the names of files on this machine, which may be any bytes, and a
// prompt. Where a file is of the workers or of the coordinator, the path that is sent is checked (cli/spec/paths.cc).
constexpr absl::string_view kAnyBytes[] = {"DATA",       "DIR",     "FILE", "FILES", "FOLDER",
                                           "FOLDER,...", "LIBRARY", "OUT",  "PATH",  "PROMPT"};

// The first value of all others that a message cannot hold: "JOB is not UTF-8: \xff". Empty: there is none.
std::string GivenNotUtf8(const CLI::App& at) {
  for (const CLI::App* part = &at; part != nullptr; part = part->get_parent()) {
    for (const CLI::Option* option : part->get_options()) {
      const std::string name = option->get_name();
      const std::string takes = absl::StartsWith(name, "-") ? ValueOf(*option) : name;
      if (std::find(std::begin(kAnyBytes), std::end(kAnyBytes), takes) != std::end(kAnyBytes)) continue;
      for (const std::string& value : option->results()) {
        if (!IsUtf8(value)) return absl::StrCat(name, " is not UTF-8: ", OneLine(value));
      }
    }
  }
  return "";
}

// The exit code, once standard output has all that was printed.
int Written(int code) {
  const absl::Status written = FlushStandardOutput();
  if (written.ok()) return code;
  SayError(written);
  return kJobFailed;
}

int RefuseCommand(const CLI::App& at, const std::string& unknown) {
  return Refuse(at, absl::StrCat("unknown command ", OneLine(unknown)), MeantCommand(at, unknown));
}

int UsageError(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  const CLI::App* at = Reached(app);
  std::string message = OneLine(InOurWords(error));
  std::string suggestion;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) {
    const std::vector<std::string> rest = app.remaining(true);
    const std::string first = rest.empty() ? "" : rest.front();
    const bool option = absl::StartsWith(first, "-");
    if (!first.empty())
      message = absl::StrCat(option ? "unknown option " : "unknown command or argument ", OneLine(first));
    suggestion = option ? Nearest(first, OptionsOf(at)) : MeantCommand(*at, first);
  } else if (at == &app && !arguments.empty()) {
    // CLI11 says "a subcommand is required" when it meets an unknown one, or an unknown option before it.
    const std::string unknown = FirstUnknown(app, arguments);
    if (!unknown.empty()) {
      const bool option = absl::StartsWith(unknown, "-");
      message = absl::StrCat("unknown ", option ? "option " : "command ", OneLine(unknown));
      suggestion = option ? Nearest(unknown, OptionsOf(&app)) : MeantCommand(app, unknown);
    } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
      message = kCommandMissing;
    }
  } else if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) {
    if (const std::string unknown = UnknownOption(app, *at, arguments); !unknown.empty()) {
      message = absl::StrCat("unknown option ", OneLine(unknown));
      suggestion = Nearest(unknown, OptionsOf(at));
    } else if (message == kCommandMissing) {
      if (const std::string command = UnknownCommand(app, *at); !command.empty()) return RefuseCommand(*at, command);
      message = kCommandMissing;
    }
  }
  return Refuse(*at, message, suggestion);
}

}  // namespace

std::string MeantCommand(const CLI::App& at, const std::string& unknown) {
  if (at.get_parent() == nullptr) {
    for (const auto& [elsewhere, here] : kElsewhere) {
      if (unknown == elsewhere) return std::string(here);
    }
  }
  const std::multimap<std::string, std::string> deeper = DeeperCommands(at);
  if (deeper.count(unknown) == 1) return deeper.find(unknown)->second;
  return Nearest(unknown, CommandsOf(&at));
}

std::unique_ptr<CLI::App> BuildApp(Invocation& invocation) {
  auto app = std::make_unique<CLI::App>(kDescription, "muster");
  app->fallthrough();
  app->require_subcommand(1);
  app->footer(kFooter);
  app->formatter(std::make_shared<HelpPage>());
  app->get_formatter()->column_width(kHelpColumn);
  app->set_help_flag("-h,--help", "show this page");
  app->set_version_flag("--version", absl::StrCat("muster ", kVersion), "show this program's version and exit");
  app->add_option("--address,--coordinator", invocation.flags.address,
                  "address of the coordinator: unix:/path or host:port (MUSTER_ADDRESS)")
      ->type_name("ADDRESS")
      ->group(kGroupGlobal);
  app->add_option("--token-file,--token", invocation.flags.token_file,
                  "file with your token for the coordinator (MUSTER_TOKEN_FILE)")
      ->type_name("FILE")
      ->group(kGroupGlobal);
  app->add_option("--ca", invocation.flags.ca,
                  "CA certificate of the coordinator (ca.crt); not needed with a token (MUSTER_CA)")
      ->type_name("FILE")
      ->group(kGroupGlobal);
  app->add_option("--timeout", invocation.flags.timeout,
                  "time limit of a call, or of following a job: 30s, 5m (MUSTER_TIMEOUT)")
      ->type_name("TIME")
      ->group(kGroupGlobal);
  app->add_flag("--no-color,--no-colour", invocation.no_colour, "no colors (NO_COLOR)")->group(kGroupGlobal);
  RegisterInit(*app, invocation);
  RegisterTrain(*app, invocation);
  RegisterSubmit(*app, invocation);
  RegisterSweep(*app, invocation);
  RegisterRun(*app, invocation);
  RegisterPlan(*app, invocation);
  RegisterValidate(*app, invocation);
  RegisterSchema(*app, invocation);
  RegisterTemplates(*app, invocation);
  RegisterPs(*app, invocation);
  RegisterTop(*app, invocation);
  RegisterUi(*app, invocation);
  RegisterWatch(*app, invocation);
  RegisterDescribe(*app, invocation);
  RegisterMetrics(*app, invocation);
  RegisterCompare(*app, invocation);
  RegisterTrace(*app, invocation);
  RegisterLogs(*app, invocation);
  RegisterEvents(*app, invocation);
  RegisterNodes(*app, invocation);
  RegisterUsage(*app, invocation);
  RegisterAudit(*app, invocation);
  RegisterCancel(*app, invocation);
  RegisterPause(*app, invocation);
  RegisterResume(*app, invocation);
  RegisterDelete(*app, invocation);
  RegisterLabel(*app, invocation);
  RegisterNote(*app, invocation);
  RegisterDrain(*app, invocation);
  RegisterUndrain(*app, invocation);
  RegisterQuota(*app, invocation);
  RegisterReservations(*app, invocation);
  RegisterData(*app, invocation);
  RegisterModel(*app, invocation);
  RegisterSample(*app, invocation);
  RegisterEval(*app, invocation);
  RegisterExport(*app, invocation);
  RegisterCheckpoint(*app, invocation);
  RegisterLocal(*app, invocation);
  RegisterCoordinator(*app, invocation);
  RegisterWorker(*app, invocation);
  RegisterBackup(*app, invocation);
  RegisterBench(*app, invocation);
  RegisterDoctor(*app, invocation);
  RegisterHelp(*app, invocation);
  RegisterCompletion(*app, invocation);
  RegisterVersion(*app, invocation);
  return app;
}

int RunProgram(const std::vector<std::string>& arguments) {
  Invocation invocation;
  const std::unique_ptr<CLI::App> app = BuildApp(invocation);
  if (arguments.empty()) {
    Print(FittedPage(app->help(), invocation.Out().width));
    return kUsage;
  }
  if (arguments.front() == kCompleteArgument) {
    const std::vector<std::string> words = JoinedAtColons({arguments.begin() + 1, arguments.end()});
    Print(CompletionLines(Complete(*app, words, [&](Named what) { return LiveNames(invocation, words, what); })));
    return kOk;
  }
  std::vector<std::string> reversed = WithKnownDashes(*app, WithProgramMarked(*app, arguments));
  if (const std::string empty = EmptyAfterEquals(*app, reversed); !empty.empty()) {
    return Refuse(*app, absl::StrCat(empty, " is empty"), "");
  }
  // CLI11 takes arguments from the back.
  std::reverse(reversed.begin(), reversed.end());
  try {
    app->parse(reversed);
  } catch (const CLI::CallForHelp&) {
    // The help of `muster improt --help` would be that of all commands.
    const CLI::App* at = Reached(*app);
    if (const std::string unknown = UnknownCommand(*app, *at); !unknown.empty()) return RefuseCommand(*at, unknown);
    Print(FittedPage(app->help(), invocation.Out().width));
    return Written(kOk);
  } catch (const CLI::CallForVersion& version) {
    Print(absl::StrCat(version.what(), "\n"));
    return Written(kOk);
  } catch (const CLI::ParseError& error) {
    return UsageError(*app, error, arguments);
  }
  const CLI::App* at = Reached(*app);
  if (const std::string empty = GivenEmpty(*at, invocation.may_be_empty); !empty.empty()) {
    return Refuse(*at, empty, "");
  }
  if (const std::string wrong = GivenNotUtf8(*at); !wrong.empty()) return Refuse(*at, wrong, "");
  const absl::StatusOr<ExitCode> code = invocation.run();
  if (!code.ok()) {
    SayError(code.status());
    return ExitCodeOf(code.status());
  }
  return Written(*code);
}

}  // namespace muster::cli
