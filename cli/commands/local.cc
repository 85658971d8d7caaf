#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/local/service.h"
#include "cli/output/format.h"
#include "cli/output/table.h"
#include "cli/output_format.h"
#include "cli/spec/paths.h"
#include "common/flags/values.h"

namespace muster::cli {
namespace {

absl::StatusOr<LocalFolders> FoldersOf(const Invocation& invocation, const std::string& bin_dir) {
  const absl::StatusOr<std::string> runtime = RuntimeFolder(invocation.environment);
  if (!runtime.ok()) return runtime.status();
  const absl::StatusOr<std::string> state = StateFolder(invocation.environment);
  if (!state.ok()) return state.status();
  return LocalFolders{*state + "/local", *runtime, bin_dir.empty() ? invocation.BinaryFolder() : bin_dir};
}

absl::StatusOr<absl::Duration> TimeoutOr(const Invocation& invocation, absl::Duration otherwise) {
  if (invocation.flags.timeout.empty()) return otherwise;
  return ParseTimeout(invocation.flags.timeout, "--timeout");
}

// "/a/b,/c" of folders relative to the working folder.
absl::StatusOr<std::string> AbsoluteFolders(std::vector<std::string> folders) {
  char working[4096];
  if (getcwd(working, sizeof(working)) == nullptr) return absl::ErrnoToStatus(errno, "cannot get the working folder");
  for (std::string& folder : folders) folder = AbsolutePath(folder, working);
  return absl::StrJoin(folders, ",");
}

void RegisterUp(CLI::App& app, Invocation& invocation) {
  struct Flags {
    LocalOptions options;
    std::vector<std::string> plugin_roots;
    std::string bin_dir;
  };
  const auto flags = std::make_shared<Flags>();
  CLI::App* command =
      AddCommand(app, "up", "Commands", "Start the daemons that are not running, and wait until they are ready",
                 "muster local up\nmuster local down && muster local up --nodes 3 --slots 2");
  command->add_option("--nodes", flags->options.nodes, "worker daemons, each a node of its own (default: 1)")
      ->type_name("N")
      ->check(Between(1, 64));
  command->add_option("--slots", flags->options.slots, "slots of each node (default: 1)")
      ->type_name("N")
      ->check(Between(1, 1024));
  command
      ->add_option("--plugin-roots", flags->plugin_roots,
                   "folders of custom model libraries that jobs may load (they run as your user)")
      ->type_name("FOLDER,...")
      ->delimiter(',');
  command
      ->add_option("--metrics-address", flags->options.metrics_address,
                   "the coordinator serves /metrics for Prometheus there: 127.0.0.1:9464; workers at the ports after "
                   "(default: nowhere)")
      ->type_name("ADDRESS");
  command->add_option("--bin-dir", flags->bin_dir, "folder of muster-coordinator and muster-worker")
      ->type_name("FOLDER");
  OnRun(command, invocation, [&invocation, flags]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<absl::Duration> timeout = TimeoutOr(invocation, flags->options.timeout);
    if (!timeout.ok()) return timeout.status();
    flags->options.timeout = *timeout;
    const absl::StatusOr<std::string> roots = AbsoluteFolders(flags->plugin_roots);
    if (!roots.ok()) return roots.status();
    flags->options.plugin_roots = *roots;
    const absl::StatusOr<LocalFolders> folders = FoldersOf(invocation, flags->bin_dir);
    if (!folders.ok()) return folders.status();
    LocalService service(*folders, Say);
    if (absl::Status up = service.Up(flags->options); !up.ok()) return up;
    Say(absl::StrCat("ready at ", folders->Address()));
    const absl::StatusOr<Connection> connection = ResolveConnection(invocation.flags, invocation.environment);
    if (connection.ok() && connection->address != folders->Address()) {
      Say(absl::StrCat("note: other commands use ", connection->address,
                       ", which a flag, MUSTER_ADDRESS or context.yaml sets"));
    }
    return kOk;
  });
}

void RegisterDown(CLI::App& app, Invocation& invocation) {
  const auto force = std::make_shared<bool>(false);
  CLI::App* command =
      AddCommand(app, "down", "Commands", "Drain and stop the daemons that `local up` started", "muster local down");
  command->add_flag("--force", *force, "kill daemons that do not stop within --timeout (default 2m)");
  OnRun(command, invocation, [&invocation, force]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<absl::Duration> timeout = TimeoutOr(invocation, absl::Minutes(2));
    if (!timeout.ok()) return timeout.status();
    const absl::StatusOr<LocalFolders> folders = FoldersOf(invocation, "");
    if (!folders.ok()) return folders.status();
    LocalService service(*folders, Say);
    const InterruptScope interrupts;
    if (absl::Status down = service.Down(*timeout, *force, Interrupted); !down.ok()) return down;
    return kOk;
  });
}

std::string StateOf(const LocalDaemon& daemon) {
  return !daemon.process.has_value() ? "dead" : daemon.unreachable.empty() ? "running" : "unreachable";
}

void RegisterStatus(CLI::App& app, Invocation& invocation) {
  const auto format = std::make_shared<Format>(Format::kTable);
  CLI::App* command =
      AddCommand(app, "status", "Commands", "Show the daemons on this machine; exit code 1 if one cannot be reached",
                 "muster local status");
  AddFormat(command, *format, {"table", "json", "yaml"});
  OnRun(command, invocation, [&invocation, format]() -> absl::StatusOr<ExitCode> {
    const absl::StatusOr<absl::Duration> timeout = TimeoutOr(invocation, absl::Seconds(5));
    if (!timeout.ok()) return timeout.status();
    const absl::StatusOr<LocalFolders> folders = FoldersOf(invocation, "");
    if (!folders.ok()) return folders.status();
    const LocalService service(*folders, Say);
    const absl::Status known = service.Check();
    const std::vector<LocalDaemon> daemons = known.ok() ? service.Look(*timeout) : service.List();
    std::vector<std::string> dead, unreachable;
    for (const LocalDaemon& daemon : daemons) {
      if (!daemon.process.has_value()) dead.push_back(daemon.name);
      if (!daemon.unreachable.empty()) unreachable.push_back(daemon.unreachable);
    }
    if (*format != Format::kTable) {
      nlohmann::ordered_json tree = {{"address", folders->Address()}, {"daemons", nlohmann::ordered_json::array()}};
      for (const LocalDaemon& daemon : daemons) {
        tree["daemons"].push_back({{"name", daemon.name},
                                   {"state", StateOf(daemon)},
                                   {"running", daemon.process.has_value()},
                                   {"pid", daemon.process ? daemon.process->pid : 0},
                                   {"log", daemon.log}});
      }
      PrintTree(tree, *format);
    } else if (!daemons.empty()) {
      Table table({{"DAEMON"}, {"STATE"}, {"PID", true}, {"AGE", true}, {"LOG"}});
      for (const LocalDaemon& daemon : daemons) {
        const bool runs = daemon.process.has_value();
        const std::string state = StateOf(daemon);
        table.Add({daemon.name, Cell(state, state == "running" ? Colour::kGreen : Colour::kRed),
                   runs ? absl::StrCat(daemon.process->pid) : "", runs ? Age(RunningFor(*daemon.process)) : "",
                   daemon.log});
      }
      Print(table.Render(invocation.Out()));
    } else if (known.ok()) {
      Say("nothing is running; start with: muster local up");
    }
    if (!known.ok()) {
      Say(std::string(known.message()));
      return kJobFailed;
    }
    if (!dead.empty()) {
      Say(absl::StrCat(absl::StrJoin(dead, ", "), dead.size() == 1 ? " is dead" : " are dead",
                       ": see the log, then start again with: muster local up"));
    }
    if (!unreachable.empty()) {
      Say(absl::StrCat(absl::StrJoin(unreachable, "; "),
                       ": see the log; to start again: muster local down --force, then muster local up"));
    }
    return dead.empty() && unreachable.empty() ? kOk : kJobFailed;
  });
}

}  // namespace

void RegisterLocal(CLI::App& app, Invocation& invocation) {
  CLI::App* group = AddCommand(app, "local", kGroupService, "Run a coordinator and workers on this machine",
                               "muster local up\nmuster local down");
  group->require_subcommand(1);
  RegisterUp(*group, invocation);
  RegisterDown(*group, invocation);
  RegisterStatus(*group, invocation);
}

}  // namespace muster::cli
