#include "worker/agent/rank_process.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/file/read_file.h"
#include "common/process/spawn.h"
#include "common/some_of.h"
#include "worker/rundir/log.h"
#include "worker/rundir/process_table.h"

namespace muster::agent {
namespace {

constexpr int kMaxDepth = 64;  // of a family tree below a shim

absl::StatusOr<int> OpenPidfd(pid_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open process ", pid));
  return fd;
}

void Signal(int pidfd, int signal) { syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0); }

// A shim that has not written processes.json yet is known by its command line.
absl::StatusOr<rundir::ProcessId> FindShim(const rundir::RankDir& dir) {
  const std::string ending = absl::StrCat("muster-step", std::string(1, '\0'), dir.path(), std::string(1, '\0'));
  for (const rundir::ProcessRow& row : rundir::ListProcesses()) {
    const absl::StatusOr<std::string> line = ReadWhole(absl::StrCat("/proc/", row.pid, "/cmdline"));
    if (line.ok() && absl::EndsWith(*line, ending)) return rundir::Identify(row.pid);
  }
  return absl::NotFoundError("no shim");
}

Ended Vanished(const rundir::RankDir& dir, const std::string& why) {
  Ended ended;
  ended.exit.set_cause(RankExit::VANISHED);
  ended.exit.set_message(absl::StrCat("rank ", dir.rank().rank, " vanished: ", why));
  for (std::string& line : rundir::LastLogLines(dir.path(), 20, 1000)) ended.exit.add_last_lines(std::move(line));
  return ended;
}

// Why a shim that is gone has not written how its trainer ended.
std::string WhyNoExit(const rundir::RankDir& dir, const rundir::ProcessId& shim) {
  const absl::StatusOr<std::string> boot = rundir::ReadBootId();
  if (boot.ok() && *boot != shim.boot_id) return "its node was rebooted";
  // It gives its reserve up for the file, or never had one.
  if (access(dir.ReservePath().c_str(), F_OK) != 0) {
    return absl::StrCat("how it ended could not be written to ", dir.path(), ": see df, and the worker's --run-dir");
  }
  // Then the shim could not give its reserve up either.
  if (faccessat(AT_FDCWD, dir.path().c_str(), W_OK | X_OK, AT_EACCESS) != 0) {
    return absl::StrCat("its parent muster-step was killed, or could not write how it ended, since the folder ",
                        dir.path(), " is not writable (", std::strerror(errno),
                        "): see ls -ld, and mount for its disk");
  }
  return "its parent muster-step was killed, and the trainer with it";
}

// Whether it was started by the rank's trainer, or is it: what a process inherits, whatever session it made for itself.
bool HasEnvironmentOf(pid_t pid, const rundir::RankDir& dir) {
  const absl::StatusOr<std::string> environment = ReadWhole(absl::StrCat("/proc/", pid, "/environ"));
  if (!environment.ok()) return false;  // gone, or another user's
  const std::string entry = absl::StrCat(kRankDirVariable, "=", dir.path(), std::string(1, '\0'));
  const size_t at = environment->find(entry);
  return at != std::string::npos && (at == 0 || (*environment)[at - 1] == '\0');
}

// Whether it holds nothing any more. The first thread of a process may be a zombie while others still end.
bool HasEnded(const rundir::ProcessRow& row) {
  if (row.state == 'X') return true;
  return row.state == 'Z' && rundir::CountThreads(row.pid) <= 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Spawn(const std::string& step_binary,
                                                                const rundir::RankDir& dir) {
  const absl::StatusOr<pid_t> pid =
      muster::Spawn({.arguments = {step_binary, dir.path()}, .environment = OwnEnvironment()});
  if (!pid.ok()) return pid.status();
  absl::StatusOr<int> fd = OpenPidfd(*pid);
  if (!fd.ok()) {
    kill(*pid, SIGKILL);
    waitpid(*pid, nullptr, 0);
    return fd.status();
  }
  return std::unique_ptr<RankProcess>(new RankProcess(*pid, *fd));
}

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Adopt(const rundir::ProcessId& shim) {
  absl::StatusOr<int> fd = OpenPidfd(shim.pid);
  if (!fd.ok()) return absl::NotFoundError(fd.status().message());
  std::unique_ptr<RankProcess> process(new RankProcess(shim.pid, *fd));
  // Looked at after the descriptor was there: it is this process, not a later one of the same number.
  if (!rundir::IsAlive(shim)) return absl::NotFoundError(absl::StrCat("process ", shim.pid, " has ended"));
  return process;
}

RankProcess::~RankProcess() { close(fd_); }

void RankProcess::Terminate() { Signal(fd_, SIGTERM); }

void RankProcess::Kill() { Signal(fd_, SIGUSR1); }

void RankProcess::Destroy() { Signal(fd_, SIGKILL); }

void RankProcess::Reap() { waitpid(pid_, nullptr, WNOHANG); }

std::variant<Unspawned, Running, Ended> Examine(const rundir::RankDir& dir) {
  absl::StatusOr<RankExit> exit = dir.ReadExit();
  if (exit.ok()) return Ended{*std::move(exit)};
  if (!absl::IsNotFound(exit.status())) return Vanished(dir, std::string(exit.status().message()));
  const absl::StatusOr<rundir::Processes> processes = dir.ReadProcesses();
  if (processes.ok()) {
    if (rundir::IsAlive(processes->shim)) return Running{processes->shim};
    exit = dir.ReadExit();  // the shim may have written it just before its end
    if (exit.ok()) return Ended{*std::move(exit)};
    return Vanished(dir, WhyNoExit(dir, processes->shim));
  }
  if (!absl::IsNotFound(processes.status())) return Vanished(dir, std::string(processes.status().message()));
  const absl::StatusOr<rundir::ProcessId> shim = FindShim(dir);
  if (shim.ok()) return Running{*shim};
  // A trainer runs only once processes.json is written; so if that is still missing, none did.
  if (!absl::IsNotFound(dir.ReadProcesses().status()) || !absl::IsNotFound(dir.ReadExit().status())) {
    return Examine(dir);
  }
  return Unspawned{};
}

std::vector<rundir::ProcessRow> Remaining(const rundir::RankDir& dir) {
  const absl::StatusOr<rundir::Processes> processes = dir.ReadProcesses();
  const absl::StatusOr<std::string> boot = rundir::ReadBootId();
  std::vector<rundir::ProcessRow> remaining;
  if (!processes.ok() || !boot.ok() || *boot != processes->shim.boot_id) return remaining;
  const auto is = [](const rundir::ProcessRow& row, const rundir::ProcessId& process) {
    return process.pid > 0 && row.pid == process.pid && row.start_ticks == process.start_ticks;
  };
  for (const rundir::ProcessRow& row : rundir::ListProcesses()) {
    const rundir::ProcessId& trainer = processes->trainer;
    const bool in_its_group = trainer.pid > 0 && row.session == processes->shim.pid && row.group == trainer.pid &&
                              row.start_ticks >= trainer.start_ticks;
    const bool its = is(row, processes->shim) || is(row, trainer) || in_its_group || HasEnvironmentOf(row.pid, dir);
    if (its && !HasEnded(row)) remaining.push_back(row);
  }
  return remaining;
}

std::string Describe(const std::vector<rundir::ProcessRow>& processes) {
  constexpr size_t kNamed = 3;
  const auto name = [](std::string* out, const rundir::ProcessRow& row) {
    absl::StrAppend(out, row.pid, " (state ", std::string(1, row.state), ")");
  };
  return absl::StrCat(processes.size() == 1 ? "process " : "processes ", SomeOf(processes, kNamed, ", ", name));
}

bool BelongsTo(pid_t pid, const rundir::RankDir& dir) {
  const absl::StatusOr<rundir::Processes> processes = dir.ReadProcesses();
  if (!processes.ok() || !rundir::IsAlive(processes->shim)) return false;
  for (int depth = 0; depth < kMaxDepth && pid > 1; ++depth) {
    if (pid == processes->trainer.pid) return rundir::IsAlive(processes->trainer);
    if (pid == processes->shim.pid) return depth > 0;
    const absl::StatusOr<rundir::ProcessRow> row = rundir::ReadProcess(pid);
    if (!row.ok()) return false;
    pid = row->parent;
  }
  return false;
}

}  // namespace muster::agent
