#include "worker/exec/program.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/log/log.h"

namespace muster::exec {
namespace {

enum class Stage : int { kFolder, kProgram };
struct Failure {
  Stage stage;
  int error;
};

bool WriteAll(int descriptor, const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(descriptor, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

std::string ReadAll(int descriptor) {
  std::string bytes;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(descriptor, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(n));
  }
}

void AppendStrings(const std::vector<std::string>& strings, std::string& bytes) {
  const auto count = static_cast<uint32_t>(strings.size());
  bytes.append(reinterpret_cast<const char*>(&count), sizeof count);
  for (const std::string& s : strings) bytes.append(s.c_str(), s.size() + 1);
}

std::vector<std::string> TakeStrings(const std::string& bytes, size_t& at) {
  uint32_t count = 0;
  std::memcpy(&count, bytes.data() + at, sizeof count);
  at += sizeof count;
  std::vector<std::string> strings;
  for (uint32_t i = 0; i < count; ++i) {
    strings.emplace_back(bytes.c_str() + at);
    at += strings.back().size() + 1;
  }
  return strings;
}

std::string PathIn(const std::vector<std::string>& environment) {
  for (absl::string_view entry : environment) {
    if (absl::ConsumePrefix(&entry, "PATH=")) return std::string(entry);
  }
  return "/usr/local/bin:/usr/bin:/bin";
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void Fail(int descriptor, Stage stage) {
  const Failure failure{stage, errno};
  [[maybe_unused]] const ssize_t n = write(descriptor, &failure, sizeof failure);
  _exit(127);
}

// As execvpe, but with the PATH of the program's own environment.
void ExecInPath(const std::vector<std::string>& argv, const std::vector<std::string>& environment) {
  const std::vector<char*> arguments = Pointers(argv), variables = Pointers(environment);
  if (absl::StrContains(argv[0], '/')) {
    execve(argv[0].c_str(), arguments.data(), variables.data());
    return;
  }
  int error = ENOENT;
  for (const absl::string_view folder : absl::StrSplit(PathIn(environment), ':', absl::SkipEmpty())) {
    execve(absl::StrCat(folder, "/", argv[0]).c_str(), arguments.data(), variables.data());
    if (errno != ENOENT && errno != ENOTDIR) error = errno;
  }
  errno = error;
}

// The process has one thread and no library that minds, so it may allocate.
[[noreturn]] void RunChild(int command, int failure, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  const std::string bytes = ReadAll(command);
  if (bytes.empty()) _exit(0);  // the parent ends without a program
  size_t at = 0;
  const std::vector<std::string> argv = TakeStrings(bytes, at), environment = TakeStrings(bytes, at),
                                 folder = TakeStrings(bytes, at);
  sigset_t none;
  sigemptyset(&none);
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (chdir(folder[0].c_str()) != 0) Fail(failure, Stage::kFolder);
  ExecInPath(argv, environment);
  Fail(failure, Stage::kProgram);
}

absl::Status Explain(const Failure& failure, const Program::Command& command) {
  if (failure.stage == Stage::kFolder) {
    return absl::ErrnoToStatus(failure.error, absl::StrCat("cannot enter workdir ", command.folder));
  }
  const std::string& program = command.argv[0];
  if (failure.error == ENOENT && !absl::StrContains(program, '/')) {
    LogWarn("the program is in no folder of PATH", {{"program", program}, {"PATH", PathIn(command.environment)}});
    return absl::NotFoundError(absl::StrCat("command not found: ", program, " (the rank's log has its PATH)"));
  }
  if (failure.error == ENOENT && access(program.c_str(), F_OK) == 0) {
    return absl::NotFoundError(absl::StrCat("cannot run ", program, ": the interpreter that it names is missing"));
  }
  return absl::ErrnoToStatus(failure.error, absl::StrCat("cannot run ", program));
}

}  // namespace

absl::StatusOr<Program> Program::Fork() {
  int command[2], failure[2];
  if (pipe2(command, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  if (pipe2(failure, O_CLOEXEC) != 0) {
    const absl::Status status = absl::ErrnoToStatus(errno, "cannot make a pipe");
    close(command[0]);
    close(command[1]);
    return status;
  }
  const pid_t parent = getpid(), pid = fork();
  if (pid == 0) {
    close(command[1]);
    close(failure[0]);
    RunChild(command[0], failure[1], parent);
  }
  const int error = errno;
  close(command[0]);
  close(failure[1]);
  const int pidfd = pid < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pid < 0 || pidfd < 0) {
    close(command[1]);
    close(failure[0]);
    if (pid > 0) kill(pid, SIGKILL), waitpid(pid, nullptr, 0);
    return absl::ErrnoToStatus(pid < 0 ? error : errno, "cannot fork");
  }
  fcntl(pidfd, F_SETFD, FD_CLOEXEC);
  return Program(pid, pidfd, command[1], failure[0]);
}

Program::Program(Program&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      pidfd_(std::exchange(other.pidfd_, -1)),
      command_(std::exchange(other.command_, -1)),
      failure_(std::exchange(other.failure_, -1)) {}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const int descriptor : {pidfd_, command_, failure_}) {
    if (descriptor >= 0) close(descriptor);
  }
}

absl::Status Program::Start(const Command& command) {
  std::string bytes;
  AppendStrings(command.argv, bytes);
  AppendStrings(command.environment, bytes);
  AppendStrings({command.folder}, bytes);
  const bool written = WriteAll(command_, bytes);
  close(std::exchange(command_, -1));
  Failure failure{};
  const std::string answer = ReadAll(failure_);  // empty: exec has closed it
  close(std::exchange(failure_, -1));
  if (answer.size() == sizeof failure) {
    std::memcpy(&failure, answer.data(), sizeof failure);
    return Explain(failure, command);
  }
  return written ? absl::OkStatus() : absl::InternalError("the new process died before it ran the command");
}

std::optional<int> Program::WaitFor(absl::Duration at_most) {
  pollfd ended{pidfd_, POLLIN, 0};
  poll(&ended, 1, static_cast<int>(absl::ToInt64Milliseconds(at_most)));
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  return status;
}

void Program::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

}  // namespace muster::exec
