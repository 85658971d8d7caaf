#include "worker/agent/callers.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/reconcile.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

constexpr size_t kMostConnections = 1024;  // of the ranks of one user, each of which needs one or two

// Whether process `pid` belongs to a rank that this worker runs as `user`.
bool IsRankOf(uid_t user, pid_t pid, const std::string& run) {
  for (const rundir::RankDir& dir : rundir::RankDir::List(run)) {
    if (dir.IsDone()) continue;
    const absl::StatusOr<rundir::Start> start = dir.ReadStart();
    if (start.ok() && start->user.has_value() && start->user->uid == user && BelongsTo(pid, dir)) return true;
  }
  return false;
}

}  // namespace

absl::Status Callers::Connected(int fd) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return absl::ErrnoToStatus(errno, "cannot ask for the peer's credentials");
  }
  if (credentials.uid != geteuid() && !IsRankOf(credentials.uid, credentials.pid, run_)) {
    return absl::PermissionDeniedError(absl::StrCat("process ", credentials.pid, " belongs to user ", credentials.uid,
                                                    ", this worker to ", geteuid(),
                                                    ", and it is not a process of a rank that runs as that user"));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, "cannot look at a connection");
  absl::MutexLock lock(&mutex_);
  if (OpenOf(credentials.uid) >= kMostConnections) {
    return absl::ResourceExhaustedError(absl::StrCat("process ", credentials.pid, ": the ranks of user ",
                                                     credentials.uid, " have ", kMostConnections, " connections"));
  }
  callers_[absl::StrCat("fd:", fd)] = Caller{fd, info.st_ino, credentials.uid, credentials.pid, ""};
  return absl::OkStatus();
}

size_t Callers::OpenOf(uid_t user) {
  size_t open = 0;
  for (auto caller = callers_.begin(); caller != callers_.end();) {
    struct stat now {};
    const bool is_open = fstat(caller->second.fd, &now) == 0 && now.st_ino == caller->second.inode;
    open += is_open && caller->second.user == user;
    caller = is_open ? std::next(caller) : callers_.erase(caller);
  }
  return open;
}

absl::Status Callers::Check(const std::string& peer, const RankKey& key) {
  const RankId rank = RankOf(key);
  const std::string name = rank.ToString();
  pid_t pid = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto caller = callers_.find(peer);
    if (caller == callers_.end()) {
      return absl::PermissionDeniedError(absl::StrCat("the caller at \"", peer, "\" is not known"));
    }
    if (caller->second.rank == name) return absl::OkStatus();
    pid = caller->second.pid;
  }
  const rundir::RankDir dir(run_, rank);
  const absl::StatusOr<rundir::RankDir> plain = rundir::RankDir::FromPath(dir.path());
  if (!plain.ok() || plain->rank() != rank || !BelongsTo(pid, dir)) {
    return absl::PermissionDeniedError(absl::StrCat("process ", pid, " is not a process of rank ", name,
                                                    " of this worker; only trainers that it started may call"));
  }
  absl::MutexLock lock(&mutex_);
  const auto caller = callers_.find(peer);
  if (caller != callers_.end() && caller->second.pid == pid) caller->second.rank = name;
  return absl::OkStatus();
}

}  // namespace muster::agent
