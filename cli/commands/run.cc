#include <algorithm>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "cli/commands/commands.h"
#include "cli/commands/submission.h"
#include "cli/job_file.h"
#include "cli/output/format.h"
#include "cli/spec/paths.h"
#include "cli/spec/source_text.h"
#include "cli/spec/writer.h"
#include "common/process/find_program.h"

namespace muster::cli {
namespace {

struct RunFlags {
  std::vector<std::string> command;
  std::string ranks, min_ranks, device, reservation, name, workdir, image, priority, max_restarts, stop_grace;
  std::vector<std::string> variables, launchers, node_selector;
  SetFlags set;
  bool print = false;
  SubmitOptions options;
};

// A program without a slash, as this shell would find it: with an active virtual environment `python` is that one's.
// What is not here may still be on the workers.
std::string Located(const std::string& program) {
  const char* path = getenv("PATH");
  const std::string file = FindProgram(program, path == nullptr ? "" : path);
  return file.empty() ? program : file;
}

std::string LastPart(const std::string& text, char separator) { return text.substr(text.rfind(separator) + 1); }

// "train" of `python train.py`, "finetune" of `python -m lab.finetune`, else the program's own.
std::string NameOf(const std::vector<std::string>& command) {
  std::string name = LastPart(command[0], '/');
  for (size_t i = 1; i < command.size(); ++i) {
    if (command[i - 1] == "-m") {
      name = LastPart(command[i], '.');
      break;
    }
    if (absl::EndsWith(command[i], ".py")) {
      name = std::string(absl::StripSuffix(LastPart(command[i], '/'), ".py"));
      break;
    }
  }
  std::string valid;
  for (const char c : name.substr(0, 40)) {
    const char lower = absl::ascii_tolower(static_cast<unsigned char>(c));
    valid += absl::ascii_isalnum(static_cast<unsigned char>(lower)) ? lower : '-';
  }
  while (!valid.empty() && valid.front() == '-') valid.erase(0, 1);
  while (!valid.empty() && valid.back() == '-') valid.pop_back();
  return valid.empty() ? "run" : valid;
}

// NAME=VALUE, or NAME with the value that it has here. Takes the place of the template's.
absl::Status AddVariable(const std::string& text, v1::JobSpec& spec) {
  const size_t equals = text.find('=');
  const std::string name = text.substr(0, equals);
  const auto known = std::find_if(spec.mutable_env()->begin(), spec.mutable_env()->end(),
                                  [&](const v1::EnvVar& other) { return other.name() == name; });
  v1::EnvVar& variable = known == spec.mutable_env()->end() ? *spec.add_env() : *known;
  variable.set_name(name);
  if (equals != std::string::npos) {
    variable.set_value(text.substr(equals + 1));
    return absl::OkStatus();
  }
  const char* value = getenv(text.c_str());
  if (value == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--env ", text, ": it is not set here; write --env ", text, "=VALUE"));
  }
  if (!IsUtf8(value)) {
    return absl::InvalidArgumentError(absl::StrCat("--env ", text, ": its value is not UTF-8: ", OneLine(value)));
  }
  variable.set_value(value);
  return absl::OkStatus();
}

absl::StatusOr<Reading> ReadingOf(const RunFlags& flags, const TemplateText& templates) {
  std::vector<Assignment> assignments = {{"run", "workload", "exec"}};
  const auto add = [&](const char* flag, const char* path, const std::string& value) {
    if (!value.empty()) assignments.push_back({flag, path, value});
  };
  add("--ranks", "resources.ranks", flags.ranks);
  add("--min-ranks", "resources.min_ranks", flags.min_ranks);
  add("--device", "resources.device", flags.device);
  if (!flags.node_selector.empty()) {
    add("--node-selector", "resources.node_selector", nlohmann::json(flags.node_selector).dump());
  }
  add("--reservation", "resources.reservation", flags.reservation);
  add("--name", "name", flags.name.empty() ? NameOf(flags.command) : flags.name);
  add("--priority", "priority", flags.priority);
  add("--max-restarts", "max_restarts", flags.max_restarts);
  add("--stop-grace", "stop_grace_seconds", flags.stop_grace);
  add("--workdir", "workdir", flags.workdir);
  add("--image", "image", flags.image);
  if (!flags.launchers.empty())
    add("--launchers", "launchers", absl::StrCat("[", absl::StrJoin(flags.launchers, ","), "]"));
  absl::StatusOr<Reading> reading = LoadFlags(assignments, flags.set, templates);
  if (!reading.ok()) return reading;
  v1::Exec& exec = *reading->spec.mutable_exec();
  exec.clear_command();
  exec.add_command(exec.image().empty() ? Located(flags.command[0]) : flags.command[0]);
  for (size_t i = 1; i < flags.command.size(); ++i) exec.add_command(flags.command[i]);
  for (const std::string& text : flags.variables) {
    if (absl::Status status = AddVariable(text, reading->spec); !status.ok()) return status;
  }
  return reading;
}

}  // namespace

void RegisterRun(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<RunFlags>();
  CLI::App* command = AddCommand(app, "run", kGroupRun, "Run any program on the cluster, as torchrun does on a machine",
                                 "muster run --ranks 2 -- python3 train.py --lr 1e-3\n"
                                 "muster run -d --min-ranks 1 --ranks 4 --env HOME -- python3 train.py");
  invocation.may_be_empty.insert(
      command->add_option("PROGRAM", flags->command, "program and arguments, after --; it runs once a rank")
          ->required());
  command->add_option("--ranks", flags->ranks, "ranks (default 1)")->type_name("N");
  command->add_option("--min-ranks", flags->min_ranks, "start with as few, and restart with more when slots are free")
      ->type_name("N");
  command->add_option("--device", flags->device, "auto, cpu or cuda")->type_name("DEVICE");
  command
      ->add_option("--node-selector", flags->node_selector,
                   "only nodes that satisfy it, as rack=a or node!=gpu-7; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command->add_option("--reservation", flags->reservation, "run on its nodes, while it lasts")->type_name("NAME");
  command->add_option("--name", flags->name, "name of the job; default: the script's")->type_name("NAME");
  command->add_option("--workdir", flags->workdir, "folder on the workers to run in; default: this one")
      ->type_name("FOLDER");
  command->add_option("--image", flags->image, "container image to run in, as docker.io/library/python:3.12")
      ->type_name("IMAGE");
  command->add_option("--env", flags->variables, "variable of the program, or one to pass on; may be repeated")
      ->type_name("NAME[=VALUE]")
      ->allow_extra_args(false);
  command->add_option("--launchers", flags->launchers, "whose variables to set: torchrun (default), slurm, openmpi")
      ->delimiter(',')
      ->type_name("NAME,...");
  command->add_option("--priority", flags->priority, "higher runs first")->type_name("N");
  command->add_option("--max-restarts", flags->max_restarts, "restarts without progress before the job fails")
      ->type_name("N");
  command->add_option("--stop-grace", flags->stop_grace, "seconds from should_stop() to SIGTERM")->type_name("S");
  AddSetFlags(command, flags->set);
  command->add_flag("--print", flags->print, "print the spec and exit");
  AddSubmitFlags(command, flags->options);
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    // The program's own arguments may be.
    if (flags->command.front().empty()) return absl::InvalidArgumentError("PROGRAM is empty");
    const absl::StatusOr<Reading> reading = ReadingOf(*flags, TemplatesOf(invocation));
    if (!reading.ok()) return reading.status();
    if (flags->print) {
      if (!reading->problems.empty()) return ToStatus(reading->problems);
      Print(WriteSpec(reading->spec));
      return kOk;
    }
    flags->options.follow = true;  // as torchrun, also into a file
    return SubmitSpecs(invocation, {*reading}, flags->options);
  });
}

}  // namespace muster::cli
