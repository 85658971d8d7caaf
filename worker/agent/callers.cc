#include "worker/agent/callers.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/reconcile.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

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
  absl::MutexLock lock(&mutex_);
  callers_[absl::StrCat("fd:", fd)] = Caller{credentials.pid, ""};
  return absl::OkStatus();
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
