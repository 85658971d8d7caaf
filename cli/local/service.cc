#include "cli/local/service.h"

#include <dirent.h>
#include <signal.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/client.h"
#include "cli/output/format.h"
#include "common/file/lock.h"
#include "common/node/not_ready.h"
#include "common/proto_time.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kStartPoll = absl::Milliseconds(50);
constexpr absl::Duration kInterruptPoll = absl::Milliseconds(100);
constexpr int kShownLines = 10;
constexpr char kCoordinator[] = "coordinator";
constexpr char kTrainerSocket[] = "/trainer.sock";
constexpr char kMetricsFlag[] = "--metrics-address";

bool FitsASocket(const std::string& path) { return path.size() < sizeof(sockaddr_un::sun_path); }

std::string WorkerName(int index) { return absl::StrCat("worker-", index); }

// worker-N is the node node-N.
std::string DaemonOf(const v1::Node& node) {
  absl::string_view number = node.id();
  return absl::ConsumePrefix(&number, "node-") ? absl::StrCat("worker-", number) : OneLine(node.id());
}

// N of worker-N; nothing for other names.
std::optional<int> IndexOf(absl::string_view daemon) {
  int index = 0;
  if (!absl::ConsumePrefix(&daemon, "worker-") || !absl::SimpleAtoi(daemon, &index)) return std::nullopt;
  return index;
}

// REQUIRES: it runs.
std::string WithItsLog(const LocalDaemon& daemon) {
  return absl::StrCat(daemon.name, " (pid ", daemon.process->pid, ", log ", daemon.log, ")");
}

// Held by one `local up` or `down` at a time.
absl::StatusOr<FileLock> LockService(const std::string& folder) {
  if (absl::Status made = MakeFolders(folder); !made.ok()) return made;
  return FileLock::Take(folder + "/lock", "`muster local` command", folder, "wait until it ends");
}

// Of worker `index`, when the coordinator's is `address`. InvalidArgument: that has no port, or there is none after it.
absl::StatusOr<std::string> MetricsAddressOf(const std::string& address, int index) {
  if (address.empty()) return "";
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 ||
      port + 1 + index > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-address ", address, ": expected 127.0.0.1:PORT, with the workers' ports after it"));
  }
  return absl::StrCat(address.substr(0, colon + 1), port + 1 + index);
}

Connection LocalConnection(const LocalFolders& folders, absl::Duration timeout) {
  Connection connection;
  connection.address = folders.Address();
  connection.timeout = timeout;
  connection.default_address = true;
  return connection;
}

}  // namespace

std::optional<ProcessId> LocalService::Running(const std::string& name) const {
  const std::optional<ProcessId> process = ReadPidFile(PidFile(name));
  return process.has_value() && Alive(*process) ? process : std::nullopt;
}

std::vector<LocalDaemon> LocalService::List() const {
  std::vector<int> workers;
  bool coordinator = false;
  if (DIR* folder = opendir(folders_.state.c_str())) {
    while (const dirent* entry = readdir(folder)) {
      absl::string_view name = entry->d_name;
      int index = 0;
      if (!absl::ConsumeSuffix(&name, ".pid")) continue;
      coordinator = coordinator || name == kCoordinator;
      if (absl::ConsumePrefix(&name, "worker-") && absl::SimpleAtoi(name, &index)) workers.push_back(index);
    }
    closedir(folder);
  }
  std::sort(workers.begin(), workers.end());
  std::vector<LocalDaemon> daemons;
  if (coordinator) daemons.push_back({kCoordinator, Running(kCoordinator), LogFile(kCoordinator)});
  for (const int index : workers) {
    daemons.push_back({WorkerName(index), Running(WorkerName(index)), LogFile(WorkerName(index))});
  }
  return daemons;
}

std::vector<LocalDaemon> LocalService::Look(absl::Duration timeout) const {
  std::vector<LocalDaemon> daemons = List();
  if (daemons.empty() || daemons[0].name != kCoordinator || !daemons[0].process.has_value()) return daemons;
  const absl::Status ours = CheckRuntimeFolder(folders_.runtime);
  const absl::StatusOr<v1::ListNodesReply> reply =
      ours.ok() ? Client(LocalConnection(folders_, timeout)).ListNodes() : ours;
  if (!reply.ok()) {
    daemons[0].unreachable = std::string(reply.status().message());
    return daemons;
  }
  for (const v1::Node& node : reply->nodes()) {
    if (node.state() == v1::NODE_STATE_LIVE) continue;
    for (LocalDaemon& daemon : daemons) {
      if (daemon.name != DaemonOf(node) || !daemon.process.has_value()) continue;
      daemon.unreachable = absl::StrCat("the coordinator counts ", node.id(), ", the node of ", daemon.name, ", as ",
                                        StateName(node.state()));
    }
  }
  return daemons;
}

absl::Status LocalService::Start(const std::string& name, const std::string& program,
                                 const std::vector<std::string>& arguments, const std::vector<int>& cores) {
  const uint64_t log_begin = FileSize(LogFile(name));
  const bool known = access(PidFile(name).c_str(), F_OK) == 0;
  const absl::StatusOr<ProcessId> process =
      StartDaemon(Daemon{absl::StrCat(folders_.bin, "/", program), arguments, LogFile(name), cores});
  if (!process.ok()) return process.status();
  started_.push_back({name, *process, log_begin, known});
  if (absl::Status written = WritePidFile(PidFile(name), *process); !written.ok()) {
    // Kill a daemon that could not be found again.
    Signal(*process, SIGTERM).IgnoreError();
    return written;
  }
  return absl::OkStatus();
}

absl::Status LocalService::CheckStarted() const {
  absl::Status ended;
  for (const Started& daemon : started_) {
    if (Alive(daemon.process)) continue;
    if (!daemon.known) Forget(daemon.name);
    const std::string lines = LastLines(LogFile(daemon.name), daemon.log_begin, kShownLines);
    ended.Update(absl::UnavailableError(absl::StrCat("the ", daemon.name, " exited right after its start; its log ",
                                                     LogFile(daemon.name),
                                                     lines.empty() ? " is empty" : " ends with:\n", lines)));
  }
  return ended;
}

absl::Status LocalService::CheckMetricsOf(const std::string& name, const ProcessId& process,
                                          const std::string& address) const {
  if (address.empty()) return absl::OkStatus();
  const std::vector<std::string> arguments = ArgumentsOf(process);
  const auto flag = std::find(arguments.begin(), arguments.end(), kMetricsFlag);
  if (flag != arguments.end() && flag + 1 != arguments.end() && flag[1] == address) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the ", name, " is running and does not serve metrics at ", address,
                   ": to change that, muster local down, then up --metrics-address ADDRESS"));
}

absl::Status LocalService::Check() const {
  // Nothing in a folder that others may write to is ours.
  if (!CheckRuntimeFolder(folders_.runtime).ok()) return absl::OkStatus();
  const std::string socket = folders_.Address().substr(5);
  if (const auto running = Running(kCoordinator)) {
    if (!IsSocketGone(socket)) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat("the coordinator (pid ", running->pid, ") runs, but its socket ",
                                                      socket, " is gone: muster local down, then muster local up"));
  }
  const std::optional<pid_t> pid = ListenerAt(socket);
  if (!pid.has_value()) return absl::OkStatus();
  const std::string process = *pid > 0 ? absl::StrCat(*pid) : "its process id";
  return absl::FailedPreconditionError(
      absl::StrCat("a coordinator", *pid > 0 ? absl::StrCat(" (pid ", *pid, ")") : "", " answers at ", socket,
                   ", but the state folder ", folders_.state,
                   " does not know it: set XDG_STATE_HOME as when it was started, or stop it with kill ", process));
}

absl::Status LocalService::StartCoordinator(const LocalOptions& options) {
  if (absl::Status known = Check(); !known.ok()) return known;
  if (const auto running = Running(kCoordinator)) {
    say_(absl::StrCat("coordinator is running (pid ", running->pid, ")"));
    return CheckMetricsOf(kCoordinator, *running, options.metrics_address);
  }
  std::vector<std::string> arguments = {
      "--state-dir", folders_.state + "/coordinator", "--listen", folders_.Address(), "--web-address", "127.0.0.1:0"};
  if (!options.metrics_address.empty()) arguments.insert(arguments.end(), {kMetricsFlag, options.metrics_address});
  const absl::Status status = Start(kCoordinator, "muster-coordinator", arguments);
  if (status.ok()) say_(absl::StrCat("coordinator started (pid ", started_.back().process.pid, ")"));
  return status;
}

// The trainers' socket is in the run folder, and a socket's path has room for 107 bytes.
std::string LocalService::RunFolder(const std::string& worker) const {
  std::string run = absl::StrCat(folders_.state, "/", worker, "/run");
  if (FitsASocket(run + kTrainerSocket)) return run;
  return absl::StrCat(folders_.runtime, "/", worker);
}

absl::Status LocalService::CheckSocketPaths(int nodes) const {
  const std::string coordinator = folders_.Address().substr(5),
                    last = RunFolder(WorkerName(nodes - 1)) + kTrainerSocket;
  for (const std::string& path : {coordinator, last}) {
    if (FitsASocket(path)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the socket path ", path, " has ", path.size(),
                                                   " bytes, more than 107: set MUSTER_RUNTIME_DIR to a shorter one"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> LocalService::DecideNodes(const LocalOptions& options) const {
  int known = 0, running = 0;
  for (const LocalDaemon& daemon : List()) {
    if (daemon.name == kCoordinator) continue;
    ++known;
    running += daemon.process.has_value() ? 1 : 0;
  }
  if (running == 0) return options.nodes.value_or(std::max(1, known));
  if (options.nodes.value_or(known) == known) return known;
  return absl::FailedPreconditionError(
      absl::StrCat("the service is running with ", known, known == 1 ? " node" : " nodes", ", not ", *options.nodes,
                   ": to change that, muster local down, then up --nodes ", *options.nodes));
}

absl::Status LocalService::StartWorker(int index, int nodes, const LocalOptions& options) {
  const std::string name = WorkerName(index);
  const absl::StatusOr<std::string> metrics = MetricsAddressOf(options.metrics_address, index);
  if (!metrics.ok()) return metrics.status();
  if (const auto running = Running(name)) {
    say_(absl::StrCat(name, " is running (pid ", running->pid, ")"));
    return CheckMetricsOf(name, *running, *metrics);
  }
  const std::string state = absl::StrCat(folders_.state, "/", name, "/state"), run = RunFolder(name);
  for (const std::string& made : {state, run}) {
    if (absl::Status status = MakeFolders(made); !status.ok()) return status;
  }
  // A worker takes its id from this file; without it, it would derive one from the hostname.
  if (const std::string id = state + "/node_id"; access(id.c_str(), F_OK) != 0) {
    if (absl::Status status = WriteFile(id, absl::StrCat("node-", index, "\n")); !status.ok()) return status;
  }
  std::vector<std::string> arguments = {"--coordinator", folders_.Address(), "--state-dir", state, "--run-dir", run,
                                        "--bin-dir",     folders_.bin};
  // One that died comes back with the slots that it had; `down` removes the file.
  const std::string kept = SlotsFile(name);
  int slots = options.slots;
  if (slots == 0) std::ifstream(kept) >> slots;
  if (absl::Status status = WriteFile(kept, absl::StrCat(slots, "\n")); !status.ok()) return status;
  if (slots > 0) arguments.insert(arguments.end(), {"--slots", absl::StrCat(slots)});
  if (!options.plugin_roots.empty()) arguments.insert(arguments.end(), {"--plugin-roots", options.plugin_roots});
  if (!metrics->empty()) arguments.insert(arguments.end(), {kMetricsFlag, *metrics});
  // Only this user can reach the coordinator.
  if (access(absl::StrCat(folders_.bin, "/muster-exec").c_str(), X_OK) == 0) {
    arguments.insert(arguments.end(), {"--exec-jobs", "on"});
  }
  // Each worker assumes that it has the machine to itself.
  const std::vector<int> cores = ShareOfCores(UsableCores(), index, nodes, slots);
  const absl::Status status = Start(name, "muster-worker", arguments, cores);
  if (status.ok()) say_(absl::StrCat(name, " started (pid ", started_.back().process.pid, ")"));
  return status;
}

absl::Status LocalService::WaitUntilServing(absl::Time deadline) {
  Client client(LocalConnection(folders_, absl::Seconds(2)));
  while (true) {
    const absl::StatusOr<v1::VersionReply> version = client.Version();
    if (version.ok()) return absl::OkStatus();
    if (absl::Status started = CheckStarted(); !started.ok()) return started;
    if (absl::IsFailedPrecondition(version.status())) return version.status();
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the coordinator is not responding: ", version.status().message(),
                                                      "\nits log ", LogFile(kCoordinator), " ends with:\n",
                                                      LastLines(LogFile(kCoordinator), 0, kShownLines)));
    }
    absl::SleepFor(kStartPoll);
  }
}

bool LocalService::IsStale(const v1::Node& node, absl::Time began) const {
  if (!node.has_preflight() || FromProto(node.preflight().time()) >= began) return false;
  return std::any_of(started_.begin(), started_.end(),
                     [name = DaemonOf(node)](const Started& started) { return started.name == name; });
}

absl::Status LocalService::WaitUntilLive(int nodes, absl::Time began, absl::Time deadline) {
  Client client(LocalConnection(folders_, absl::Seconds(5)));
  while (true) {
    const absl::StatusOr<v1::ListNodesReply> reply = client.ListNodes();
    int live = 0;
    std::vector<std::string> problems;
    if (reply.ok()) {
      for (const v1::Node& node : reply->nodes()) {
        if (node.state() != v1::NODE_STATE_LIVE || IsStale(node, began)) continue;
        if (NotReady(node).empty()) {
          ++live;
        } else if (const std::string found = ProblemsOf(node.preflight()); !found.empty()) {
          problems.push_back(absl::StrCat(DaemonOf(node), " is not ready: ", found));
        }
      }
      if (live >= nodes) return absl::OkStatus();
    }
    if (absl::Status started = CheckStarted(); !started.ok()) return started;
    const bool late = absl::Now() > deadline;
    if (!problems.empty() && (late || live + static_cast<int>(problems.size()) >= nodes)) {
      return absl::InternalError(absl::StrCat(absl::StrJoin(problems, "; "), "; see: muster doctor"));
    }
    if (late) {
      const std::string log = LogFile(WorkerName(0));
      return absl::DeadlineExceededError(absl::StrCat(live, " of ", nodes, " nodes are ready; the log ", log,
                                                      " ends with:\n", LastLines(log, 0, kShownLines)));
    }
    absl::SleepFor(kStartPoll);
  }
}

void LocalService::ForgetNodesAfter(int nodes) {
  Client client(LocalConnection(folders_, absl::Seconds(5)));
  const absl::StatusOr<v1::ListNodesReply> reply = client.ListNodes();
  if (!reply.ok()) return;
  for (const v1::Node& node : reply->nodes()) {
    if (node.state() == v1::NODE_STATE_LIVE || IndexOf(DaemonOf(node)).value_or(0) < nodes) continue;
    // Refused if it was killed with ranks: it is lost soon, and the next `up` removes it.
    (void)client.Forget(node.id());
  }
}

bool LocalService::MayHaveRanks() const {
  Client client(LocalConnection(folders_, absl::Seconds(2)));
  const absl::StatusOr<v1::ListJobsReply> reply = client.ListJobs(/*all=*/false);
  return !reply.ok() || std::any_of(reply->jobs().begin(), reply->jobs().end(), [](const v1::JobSummary& job) {
    const v1::JobState state = job.job().state();
    return state == v1::JOB_STATE_STARTING || state == v1::JOB_STATE_RUNNING || state == v1::JOB_STATE_STOPPING;
  });
}

// As the workers report them: those that ran before have the slots that they were started with.
absl::Status LocalService::CheckSlots(int wanted) {
  Client client(LocalConnection(folders_, absl::Seconds(5)));
  const absl::StatusOr<v1::ListNodesReply> reply = client.ListNodes();
  if (!reply.ok()) return reply.status();
  const size_t cores = UsableCores().size();
  size_t slots = 0;
  for (const v1::Node& node : reply->nodes()) {
    if (node.state() != v1::NODE_STATE_LIVE) continue;  // of an earlier service
    slots += static_cast<size_t>(node.slots_size());
    if (wanted == 0 || node.slots().empty() || node.slots_size() == wanted) continue;
    return absl::FailedPreconditionError(absl::StrCat(node.id(), " is running with ", node.slots_size(),
                                                      node.slots_size() == 1 ? " slot" : " slots", ", not ", wanted,
                                                      ": to change that, muster local down, then up --slots ", wanted));
  }
  if (slots > cores) {
    say_(absl::StrCat("note: ", slots, " slots share ", cores, cores == 1 ? " core" : " cores",
                      ", so that ranks slow each other down"));
  }
  return absl::OkStatus();
}

// A state folder that cannot be used may be the wrong one.
absl::Status LocalService::WhyNotLocked(const absl::Status& status) const {
  if (absl::IsAborted(status)) return status;
  const absl::Status known = Check();
  return known.ok() ? status : known;
}

absl::Status LocalService::Up(const LocalOptions& options) {
  const auto lock = LockService(folders_.state);
  if (!lock.ok()) return WhyNotLocked(lock.status());
  if (absl::Status made = MakeFolders(folders_.runtime); !made.ok()) return made;
  if (absl::Status ours = CheckRuntimeFolder(folders_.runtime); !ours.ok()) return ours;
  const absl::StatusOr<int> nodes = DecideNodes(options);
  if (!nodes.ok()) return nodes.status();
  if (absl::Status fits = CheckSocketPaths(*nodes); !fits.ok()) return fits;
  if (const auto last = MetricsAddressOf(options.metrics_address, *nodes - 1); !last.ok()) return last.status();
  started_.clear();
  const absl::Time began = absl::Now(), deadline = began + options.timeout;
  if (absl::Status status = StartCoordinator(options); !status.ok()) return status;
  if (absl::Status status = WaitUntilServing(deadline); !status.ok()) return status;
  for (const LocalDaemon& daemon : List()) {  // left from an earlier, larger service
    if (IndexOf(daemon.name).value_or(0) >= *nodes) Forget(daemon.name);
  }
  ForgetNodesAfter(*nodes);
  for (int index = 0; index < *nodes; ++index) {
    if (absl::Status status = StartWorker(index, *nodes, options); !status.ok()) return status;
  }
  if (absl::Status status = WaitUntilLive(*nodes, began, deadline); !status.ok()) return status;
  return CheckSlots(options.slots);
}

void LocalService::Forget(const std::string& name) const {
  unlink(PidFile(name).c_str());
  unlink(SlotsFile(name).c_str());
}

absl::Status LocalService::Stop(const std::vector<LocalDaemon>& daemons, const std::vector<LocalDaemon>& later,
                                absl::Duration timeout, bool force, const std::function<bool()>& interrupted) {
  const absl::Time deadline = absl::Now() + timeout;
  for (const LocalDaemon& daemon : daemons) {
    const absl::Status sent = Signal(*daemon.process, SIGTERM);
    if (!sent.ok() && !absl::IsNotFound(sent)) return sent;
  }
  std::vector<std::string> left;
  for (const LocalDaemon& daemon : daemons) {
    bool ended = false;
    do {  // after an interruption, each daemon is looked at once more
      ended = WaitForEnd(*daemon.process, std::min(deadline - absl::Now(), kInterruptPoll));
    } while (!ended && absl::Now() < deadline && !interrupted());
    const bool killed = !ended && force && !interrupted() && Signal(*daemon.process, SIGKILL).ok();
    if (killed) ended = WaitForEnd(*daemon.process, absl::Seconds(10));
    if (!ended) {
      left.push_back(WithItsLog(daemon));
      continue;
    }
    Forget(daemon.name);
    say_(absl::StrCat(daemon.name, killed ? " killed" : " stopped", " (pid ", daemon.process->pid, ")"));
  }
  if (interrupted() && (!left.empty() || !later.empty())) {
    std::vector<std::string> states;
    if (!left.empty()) states.push_back(absl::StrCat("still stopping: ", absl::StrJoin(left, ", ")));
    std::vector<std::string> running;
    for (const LocalDaemon& daemon : later) running.push_back(WithItsLog(daemon));
    if (!running.empty()) states.push_back(absl::StrCat("not stopped: ", absl::StrJoin(running, ", ")));
    return absl::CancelledError(
        absl::StrCat("interrupted; ", absl::StrJoin(states, "; "), "; to stop the rest: muster local down"));
  }
  if (left.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(absl::StrCat("still running after ", absl::FormatDuration(timeout), ": ",
                                                  absl::StrJoin(left, ", "), "; to kill them: --force"));
}

absl::Status LocalService::Down(absl::Duration timeout, bool force, const std::function<bool()>& interrupted) {
  const auto lock = LockService(folders_.state);
  if (!lock.ok()) return WhyNotLocked(lock.status());
  std::vector<LocalDaemon> coordinators, workers;
  for (LocalDaemon& daemon : List()) {
    if (!daemon.process) {
      Forget(daemon.name);  // it exited earlier
      continue;
    }
    (daemon.name == kCoordinator ? coordinators : workers).push_back(std::move(daemon));
  }
  if (coordinators.empty() && workers.empty()) {
    if (absl::Status known = Check(); !known.ok()) return known;
    say_("nothing is running");
    return absl::OkStatus();
  }
  if (!workers.empty() && MayHaveRanks()) say_("draining: running jobs write a checkpoint and return to the queue");
  if (absl::Status status = Stop(workers, coordinators, timeout, force, interrupted); !status.ok()) return status;
  return Stop(coordinators, {}, timeout, force, interrupted);
}

}  // namespace muster::cli
