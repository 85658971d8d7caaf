#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/doctor/checks.h"
#include "cli/output/format.h"
#include "cli/output_format.h"

namespace muster::cli {
namespace {

struct DoctorFlags {
  std::vector<std::string> folders;
  std::string bin_dir;
  Format format = Format::kTable;
};

// Of a coordinator that `muster local up` started; empty: there is none.
std::string LocalLog(const Invocation& invocation) {
  const absl::StatusOr<std::string> state = StateFolder(invocation.environment);
  if (!state.ok()) return "";
  const std::string log = *state + "/local/coordinator.log";
  return access(log.c_str(), R_OK) == 0 ? log : "";
}

std::vector<Finding> Examine(Invocation& invocation, const DoctorFlags& flags) {
  std::vector<Finding> all = {CheckSystem(), CheckCores(), CheckCpu(), CheckMemory()};
  const auto add = [&](std::vector<Finding> findings) {
    for (Finding& finding : findings) all.push_back(std::move(finding));
  };
  add(CheckLimits());
  const Screen clock = flags.format == Format::kTable ? invocation.Out() : Screen{};
  const absl::StatusOr<std::string> state = StateFolder(invocation.environment);
  add({CheckClock(clock), CheckRankUsers(),
       state.ok() ? CheckDisk(*state, "the state folder")
                  : Finding{"state folder", Severity::kProblem, std::string(state.status().message()),
                            "export HOME=$(getent passwd $(id -u) | cut -d: -f6)"}});
  for (const std::string& folder : flags.folders) add({CheckFolder(folder)});
  const absl::StatusOr<std::string> runtime = RuntimeFolder(invocation.environment);
  add({runtime.ok() ? CheckRuntime(*runtime)
                    : Finding{"runtime folder", Severity::kProblem, std::string(runtime.status().message()),
                              "export MUSTER_RUNTIME_DIR=/tmp/muster-$(id -u)"}});
  add(CheckPrograms(flags.bin_dir.empty() ? invocation.BinaryFolder() : flags.bin_dir));
  add(CheckGpus());
  if (invocation.flags.timeout.empty()) invocation.flags.timeout = "5s";
  const absl::StatusOr<std::unique_ptr<Client>> client = invocation.Connect();
  add(CheckService(client.ok() ? absl::StatusOr<Client*>(client->get()) : client.status(), LocalLog(invocation)));
  return all;
}

const char* NameOf(Severity severity) {
  return severity == Severity::kOk ? "ok" : severity == Severity::kNote ? "note" : "problem";
}

void PrintText(const std::vector<Finding>& findings, const Screen& screen) {
  const auto mark = [&](Severity severity) {
    const bool good = severity == Severity::kOk;
    const Colour colour = good ? Colour::kGreen : severity == Severity::kNote ? Colour::kYellow : Colour::kRed;
    const std::string text = good ? "ok" : NameOf(severity);
    return Paint(screen, colour, text) + std::string(9 - text.size(), ' ');
  };
  constexpr int kIndent = 25;
  int problems = 0;
  for (const Finding& finding : findings) {
    problems += finding.severity == Severity::kProblem ? 1 : 0;
    const std::string line =
        absl::StrCat(mark(finding.severity), finding.check,
                     std::string(16 - std::min<size_t>(finding.check.size(), 15), ' '), Lines(finding.text), "\n");
    Print(Wrapped(line, screen.width, kIndent));
    if (finding.remedy.empty()) continue;
    const std::string remedy = absl::StrCat(std::string(kIndent, ' '), "-> ", Lines(finding.remedy), "\n");
    Print(Wrapped(remedy, screen.width, kIndent + 3));
  }
  Say(problems == 0 ? "no problems found" : absl::StrCat(problems, problems == 1 ? " problem" : " problems"));
}

void PrintList(const std::vector<Finding>& findings, Format format) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    list.push_back({{"check", finding.check},
                    {"severity", NameOf(finding.severity)},
                    {"text", finding.text},
                    {"remedy", finding.remedy}});
  }
  PrintTree(list, format);
}

}  // namespace

void RegisterDoctor(CLI::App& app, Invocation& invocation) {
  const auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      AddCommand(app, "doctor", kGroupService, "Check this machine for problems, with a remedy for each",
                 "muster doctor\nmuster doctor --folder /data/checkpoints -o json");
  command
      ->add_option("--folder", flags->folders,
                   "also check the disk of this folder, e.g. of the checkpoints; may be repeated")
      ->type_name("FOLDER")
      ->allow_extra_args(false);
  command->add_option("--bin-dir", flags->bin_dir, "folder of Muster's other programs")->type_name("FOLDER");
  AddFormat(command, flags->format, {"table", "json", "yaml"});
  command->footer(command->get_footer() + "\n\nExit code: 0 no problems, 1 problems found.");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const std::vector<Finding> findings = Examine(invocation, *flags);
    if (flags->format == Format::kTable) {
      PrintText(findings, invocation.Out());
    } else {
      PrintList(findings, flags->format);
    }
    for (const Finding& finding : findings) {
      if (finding.severity == Severity::kProblem) return kJobFailed;
    }
    return kOk;
  });
}

}  // namespace muster::cli
