#include "cli/local/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fstream>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "cli/config.h"
#include "cli/output/format.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "common/process/spawn.h"

namespace muster::cli {
namespace {

constexpr absl::Duration kExitPoll = absl::Milliseconds(20);
constexpr uint64_t kTailBytes = 16 << 10;

// Pins this thread, and the processes that it starts, to these cores while the object exists.
class CoresOfChildren {
 public:
  explicit CoresOfChildren(const std::vector<int>& cores) {
    if (cores.empty() || sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int core : cores) CPU_SET(core, &set);
    changed_ = sched_setaffinity(0, sizeof set, &set) == 0;
  }
  ~CoresOfChildren() {
    if (changed_) sched_setaffinity(0, sizeof before_, &before_);
  }
  CoresOfChildren(const CoresOfChildren&) = delete;

 private:
  cpu_set_t before_;
  bool changed_ = false;
};

// Debian 12's headers have no pidfd_open.
int OpenPidfd(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// Empty: the process is gone, or a zombie.
std::optional<ProcessId> FindProcess(pid_t pid) {
  if (pid <= 0) return std::nullopt;
  // Our own child would stay a zombie until waited for.
  waitpid(pid, nullptr, WNOHANG);
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  // The name in parentheses may contain anything; the last ')' ends it. The state follows; the start time is the 20th
  // field after it.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return std::nullopt;
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 2), ' ');
  ProcessId process{pid, 0};
  if (fields.size() < 20 || fields[0] == "Z" || fields[0] == "X") return std::nullopt;
  if (!absl::SimpleAtoi(fields[19], &process.start)) return std::nullopt;
  return process;
}

}  // namespace

bool Alive(const ProcessId& process) {
  const std::optional<ProcessId> found = FindProcess(process.pid);
  return found.has_value() && found->start == process.start;
}

absl::Duration RunningFor(const ProcessId& process) {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const double started = static_cast<double>(process.start) / static_cast<double>(sysconf(_SC_CLK_TCK));
  return absl::Seconds(static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 - started);
}

absl::StatusOr<ProcessId> StartDaemon(const Daemon& daemon) {
  const int log = open(daemon.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log < 0) return FileError(errno, absl::StrCat("opening ", daemon.log));
  const absl::Cleanup closing = [&] { close(log); };
  Program program{.arguments = {daemon.program},
                  .environment = OwnEnvironment(),
                  .output = log,
                  .error = log,
                  .leads = Program::Leads::kSession};
  program.arguments.insert(program.arguments.end(), daemon.arguments.begin(), daemon.arguments.end());
  const CoresOfChildren cores(daemon.cores);
  const absl::StatusOr<pid_t> pid = Spawn(std::move(program));
  if (absl::IsNotFound(pid.status()) && access(daemon.program.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat("there is no ", daemon.program,
                                            ": Muster's programs are in one folder; name it with --bin-dir or "
                                            "MUSTER_BIN_DIR"));
  }
  if (!pid.ok()) {
    return absl::Status(pid.status().code(), absl::StrCat(pid.status().message(), " (log ", daemon.log, ")"));
  }
  const std::optional<ProcessId> process = FindProcess(*pid);
  // It has exited already: the caller sees from the log why.
  return process.value_or(ProcessId{*pid, 0});
}

std::vector<int> UsableCores() {
  cpu_set_t set;
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

std::vector<int> ShareOfCores(const std::vector<int>& cores, int index, int nodes, int slots) {
  const int all = static_cast<int>(cores.size()), each = std::max(1, slots);
  if (nodes * each <= all) return {cores.begin() + index * all / nodes, cores.begin() + (index + 1) * all / nodes};
  std::vector<int> share;
  for (int i = 0; i < std::min(each, all); ++i) share.push_back(cores[static_cast<size_t>((index * each + i) % all)]);
  std::sort(share.begin(), share.end());
  return share;
}

absl::Status Signal(const ProcessId& process, int signal) {
  const int pidfd = OpenPidfd(process.pid);
  if (pidfd < 0) return absl::NotFoundError(absl::StrCat("process ", process.pid, " is gone"));
  // The descriptor pins the process, so only now is the start time conclusive.
  const bool same = Alive(process);
  const int result = same ? static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0)) : -1;
  const int error = same ? errno : ESRCH;
  close(pidfd);
  if (result == 0) return absl::OkStatus();
  if (error == ESRCH) return absl::NotFoundError(absl::StrCat("process ", process.pid, " is gone"));
  return absl::ErrnoToStatus(error, absl::StrCat("cannot signal process ", process.pid));
}

bool WaitForEnd(const ProcessId& process, absl::Duration at_most) {
  const absl::Time deadline = absl::Now() + at_most;
  while (Alive(process)) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(kExitPoll);
  }
  return true;
}

std::vector<std::string> ArgumentsOf(const ProcessId& process) {
  const absl::StatusOr<std::string> line = ReadWhole(absl::StrCat("/proc/", process.pid, "/cmdline"));
  if (!line.ok() || !Alive(process)) return {};
  std::vector<std::string> words = absl::StrSplit(*line, '\0');
  words.pop_back();  // after the last zero
  if (!words.empty()) words.erase(words.begin());
  return words;
}

std::optional<pid_t> ListenerAt(const std::string& path) {
  sockaddr_un at{};
  if (path.size() >= sizeof at.sun_path) return std::nullopt;
  at.sun_family = AF_UNIX;
  path.copy(at.sun_path, path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return std::nullopt;
  const absl::Cleanup closing = [&] { close(fd); };
  // EAGAIN: it listens, and its backlog is full. Only a connection has the credentials of who listens (unix(7)).
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) != 0) {
    return errno == EAGAIN ? std::optional<pid_t>(0) : std::nullopt;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 ? peer.pid : 0;
}

bool IsSocketGone(const std::string& path) {
  struct stat found {};
  if (lstat(path.c_str(), &found) == 0 || errno != ENOENT) return false;
  // proc(5): "Num RefCount Protocol Flags Type St Inode Path"; bit 16 of the flags: it listens.
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    if (!absl::EndsWith(line, " " + path)) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(line, absl::MaxSplits(' ', 4));
    uint32_t flags = 0;
    if (fields.size() < 5 || !absl::SimpleHexAtoi(fields[3], &flags)) continue;
    if ((flags & 0x10000) != 0) return true;
  }
  return false;
}

std::optional<ProcessId> ReadPidFile(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWhole(path, 256);
  if (!text.ok()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(*text, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  ProcessId process;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &process.pid) || !absl::SimpleAtoi(parts[1], &process.start)) {
    return std::nullopt;
  }
  return process;
}

absl::Status WritePidFile(const std::string& path, const ProcessId& process) {
  return WriteFile(path, absl::StrCat(process.pid, " ", process.start, "\n"));
}

uint64_t FileSize(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 ? static_cast<uint64_t>(found.st_size) : 0;
}

std::string LastLines(const std::string& path, uint64_t from, int count) {
  std::ifstream file(path, std::ios::binary);
  const uint64_t size = FileSize(path);
  const uint64_t begin = std::max(from, size > kTailBytes ? size - kTailBytes : 0);
  file.seekg(static_cast<std::streamoff>(begin));
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(OneLine(line));
  std::string text;
  for (size_t i = lines.size() > static_cast<size_t>(count) ? lines.size() - count : 0; i < lines.size(); ++i) {
    absl::StrAppend(&text, "  ", lines[i], "\n");
  }
  return text;
}

}  // namespace muster::cli
