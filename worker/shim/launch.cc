#include "worker/shim/launch.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace muster::step {
namespace {

struct Pipe {
  int read = -1;
  int write = -1;
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  absl::Status Open() {
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
    read = fds[0];
    write = fds[1];
    return absl::OkStatus();
  }
  void CloseRead() {
    if (read >= 0) close(std::exchange(read, -1));
  }
  void CloseWrite() {
    if (write >= 0) close(std::exchange(write, -1));
  }
};

enum class Stage : int { kParentGone, kDescriptors, kChdir, kExec };

struct Failure {
  Stage stage;
  int error;
};

// Everything that the child needs, prepared before the fork; the child must not allocate.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* directory = "/";
  pid_t parent = 0;
  Pipe output, go, failure;
};

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& s : strings) pointers.push_back(const_cast<char*>(s.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void Fail(const Prepared& prepared, Stage stage) {
  const Failure failure{stage, errno};
  [[maybe_unused]] const ssize_t n = write(prepared.failure.write, &failure, sizeof failure);
  _exit(127);
}

[[noreturn]] void RunChild(Prepared& prepared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) Fail(prepared, Stage::kParentGone);
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null < 0 || dup2(null, 0) < 0 || dup2(prepared.output.write, 1) < 0 || dup2(prepared.output.write, 2) < 0) {
    Fail(prepared, Stage::kDescriptors);
  }
  prepared.go.CloseWrite();
  char byte = 0;
  ssize_t n = 0;
  while ((n = read(prepared.go.read, &byte, 1)) < 0 && errno == EINTR) {
  }
  if (n != 1) _exit(127);
  if (chdir(prepared.directory) != 0) Fail(prepared, Stage::kChdir);
  execve(prepared.argv[0], prepared.argv.data(), prepared.environment.data());
  Fail(prepared, Stage::kExec);
}

absl::Status Explain(const Failure& failure, const rundir::Start& start) {
  switch (failure.stage) {
    case Stage::kChdir:
      return absl::ErrnoToStatus(failure.error, absl::StrCat("cannot enter folder ", start.working_directory));
    case Stage::kExec:
      if (failure.error == ENOENT && access(start.argv[0].c_str(), F_OK) == 0) {
        return absl::NotFoundError(absl::StrCat("cannot run ", start.argv[0],
                                                ": the interpreter or loader that it names is not on this machine"));
      }
      return absl::ErrnoToStatus(failure.error, absl::StrCat("cannot run ", start.argv[0]));
    default:
      return absl::ErrnoToStatus(failure.error, "cannot set up the process");
  }
}

}  // namespace

void RestrictSelf() {
  // Supported by every kernel that runs the rest; errors are ignored because training works without them.
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
}

absl::StatusOr<Trainer> Launch(const rundir::Start& start, const std::function<absl::Status(pid_t)>& before_exec) {
  if (start.argv.empty()) return absl::InvalidArgumentError("the command line is empty");
  Prepared prepared{Pointers(start.argv), Pointers(start.environment), start.working_directory.c_str(), getpid()};
  for (Pipe* pipe : {&prepared.output, &prepared.go, &prepared.failure}) {
    if (absl::Status status = pipe->Open(); !status.ok()) return status;
  }
  const pid_t pid = fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot fork");
  if (pid == 0) RunChild(prepared);
  setpgid(pid, pid);  // in both processes, so that the group exists whichever runs first
  prepared.output.CloseWrite();
  prepared.failure.CloseWrite();
  prepared.go.CloseRead();

  absl::Status status = before_exec(pid);
  if (status.ok() && write(prepared.go.write, "g", 1) != 1) status = absl::ErrnoToStatus(errno, "the new process died");
  prepared.go.CloseWrite();
  Failure failure{};
  ssize_t n = 0;
  while ((n = read(prepared.failure.read, &failure, sizeof failure)) < 0 && errno == EINTR) {
  }
  if (status.ok() && n == sizeof failure) status = Explain(failure, start);
  if (!status.ok()) {
    waitpid(pid, nullptr, 0);
    return status;
  }
  fcntl(prepared.output.read, F_SETFL, O_NONBLOCK);
  return Trainer{pid, std::exchange(prepared.output.read, -1)};
}

}  // namespace muster::step
