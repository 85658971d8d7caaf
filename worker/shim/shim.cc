#include "worker/shim/shim.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <memory>
#include <string>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file/lock.h"
#include "worker/rundir/log.h"
#include "worker/shim/launch.h"
#include "worker/shim/supervise.h"

namespace muster::step {
namespace {

constexpr off_t kReserveBytes = 64 * 1024;

// Reserves disk space for exit.json from the start, in case the trainer fills the disk.
class Reserve {
 public:
  explicit Reserve(const rundir::RankDir& dir) : path_(dir.ReservePath()) {
    const int fd = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    // Without the reserve exit.json may fail on a full disk; that does not prevent training.
    [[maybe_unused]] const int error = posix_fallocate(fd, 0, kReserveBytes);
    close(fd);
  }
  void Release() const { unlink(path_.c_str()); }

 private:
  std::string path_;
};

absl::StatusOr<int> BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGCHLD, SIGTERM, SIGUSR1}) sigaddset(&set, signal);
  if (sigprocmask(SIG_SETMASK, &set, nullptr) != 0) return absl::ErrnoToStatus(errno, "cannot block signals");
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot make a signal descriptor");
  return fd;
}

// Detaches from the worker's terminal, files and sockets.
absl::Status Detach() {
  if (setsid() < 0 && errno != EPERM) return absl::ErrnoToStatus(errno, "cannot begin a session");
  if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) return absl::ErrnoToStatus(errno, "cannot become a subreaper");
  const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null < 0) return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  for (int fd = 0; fd <= 2; ++fd) dup2(null, fd);
  close(null);
  return absl::OkStatus();
}

// One shim per folder and one start per rank, even if a restarted worker tries again: the lock is held until this
// process ends.
absl::StatusOr<FileLock> TakeFolder(const rundir::RankDir& dir) {
  absl::StatusOr<FileLock> lock =
      FileLock::Take(dir.path() + "/lock", "muster-step", dir.path(), "one shim runs a rank, once");
  if (!lock.ok()) return lock;
  if (!absl::IsNotFound(dir.ReadProcesses().status()) || !absl::IsNotFound(dir.ReadExit().status())) {
    return absl::FailedPreconditionError("this rank was started before");
  }
  return lock;
}

absl::Status WriteProcesses(const rundir::RankDir& dir, pid_t trainer) {
  absl::StatusOr<rundir::ProcessId> shim = rundir::Identify(getpid());
  if (!shim.ok()) return shim.status();
  absl::StatusOr<rundir::ProcessId> child = rundir::Identify(trainer);
  if (!child.ok()) return child.status();
  return dir.WriteProcesses({*shim, *child});
}

// Errors: no trainer was started.
absl::StatusOr<Ending> RunTrainer(const rundir::RankDir& dir, const rundir::Start& start, const Clock& clock) {
  absl::StatusOr<std::unique_ptr<rundir::LogWriter>> log = rundir::LogWriter::Open(dir.path());
  if (!log.ok()) return log.status();
  absl::StatusOr<int> signals = BlockSignals();
  if (!signals.ok()) return signals.status();
  const auto closed = absl::MakeCleanup([&signals] { close(*signals); });
  if (absl::Status status = Detach(); !status.ok()) return status;
  RestrictSelf();
  absl::StatusOr<std::unique_ptr<rundir::Lease>> lease = rundir::Lease::Open(dir.run(), false);
  absl::StatusOr<Trainer> trainer = Launch(start, [&dir](pid_t pid) { return WriteProcesses(dir, pid); });
  if (!trainer.ok()) return trainer.status();
  return Supervisor(start, lease.ok() ? lease->get() : nullptr, **log, clock, *signals).Run(*trainer);
}

}  // namespace

absl::Status RunRank(const rundir::RankDir& dir, const Clock& clock) {
  absl::StatusOr<rundir::Start> start = dir.ReadStart();
  if (!start.ok()) return start.status();
  const absl::StatusOr<FileLock> lock = TakeFolder(dir);
  if (!lock.ok()) return lock.status();
  for (const int signal : {SIGPIPE, SIGXFSZ, SIGHUP, SIGINT, SIGQUIT}) std::signal(signal, SIG_IGN);
  const Reserve reserve(dir);
  absl::StatusOr<Ending> ended = RunTrainer(dir, *start, clock);
  Ending ending;
  if (ended.ok()) {
    ending = *std::move(ended);
  } else {
    ending.spawn_error = std::string(ended.status().message());
    ending.ended = clock.Read().wall;
  }
  ending.rank = dir.rank().rank;
  reserve.Release();
  return dir.WriteExit(MakeExit(ending));
}

}  // namespace muster::step
