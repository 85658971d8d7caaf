#include "worker/shim/launch.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
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

enum class Stage : int { kParentGone, kDescriptors, kUser, kChdir, kExec };

struct Failure {
  Stage stage;
  int error;
};

// Everything that the child needs, prepared before the fork; the child must not allocate.
struct Prepared {
  std::vector<char*> argv;
  std::vector<char*> environment;
  const char* directory = "/";
  const rundir::User* user = nullptr;  // null: as this process
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

void DieWithParent(const Prepared& prepared) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != prepared.parent) Fail(prepared, Stage::kParentGone);
}

bool IsOnly(const rundir::User& user) {
  uid_t uids[3] = {};
  gid_t gids[3] = {};
  if (getresuid(&uids[0], &uids[1], &uids[2]) != 0 || getresgid(&gids[0], &gids[1], &gids[2]) != 0) return false;
  for (int i = 0; i < 3; ++i) {
    if (uids[i] != user.uid || gids[i] != user.gid) return false;
  }
  return true;
}

// Without a way back: the groups go first, since only the user who may switch can drop them, then the capabilities of a
// worker that is not root. False: errno says why.
bool Become(const rundir::User& user) {
  if (setgroups(user.groups.size(), user.groups.data()) != 0) return false;
  if (setresgid(user.gid, user.gid, user.gid) != 0 || setresuid(user.uid, user.uid, user.uid) != 0) return false;
  prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capset, &header, none) != 0) return false;
  umask(user.umask);
  const bool back = setresuid(-1, 0, -1) == 0 || setresgid(-1, 0, -1) == 0 || setgroups(0, nullptr) == 0;
  errno = EPERM;
  return !back && user.uid != 0 && IsOnly(user);
}

[[noreturn]] void RunChild(Prepared& prepared) {
  DieWithParent(prepared);
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
  if (prepared.user != nullptr) {
    if (!Become(*prepared.user)) Fail(prepared, Stage::kUser);
    DieWithParent(prepared);  // the kernel forgot it with the user
  }
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
      if (failure.error == EACCES && start.user.has_value()) {
        return absl::PermissionDeniedError(absl::StrCat("user ", start.user->uid, " may not run ", start.argv[0],
                                                        ": it and the folders above it must be open to all users"));
      }
      return absl::ErrnoToStatus(failure.error, absl::StrCat("cannot run ", start.argv[0]));
    case Stage::kUser:
      return absl::ErrnoToStatus(failure.error,
                                 absl::StrCat("cannot become user ", start.user->uid, ", group ", start.user->gid));
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
  Prepared prepared{Pointers(start.argv), Pointers(start.environment), start.working_directory.c_str(),
                    start.user.has_value() ? &*start.user : nullptr, getpid()};
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
