// The folder of one rank, <run>/<job>/<generation>/<rank>/, through which worker daemon, shim and trainer share state
// across restarts. Files are written atomically (temporary name, fsync, rename) unless noted:
//
//   start.json      worker: command line, limits, orphan grace; written before the shim is spawned
//   processes.json  shim: pid and start time of shim and trainer, boot id
//   exit.json       shim: the trainer's exit
//   reserve         shim: room on the disk for exit.json, until that is written
//   log.NNNNNN      shim: 1 MiB segments of stdout and stderr together; the first and the newest 64 are kept
//   outbox.NNNNNN   trainer: records (outbox.h)
//   progress        trainer: a page with its current op, which it has mapped
//   trainer/        trainer: if it runs as another user than the worker, its folder, with its outbox and progress. What
//                   else is here belongs to the worker, and no rank can read or replace it
//   keys            worker: the rank's rendezvous keys, one per line, appended
//   lock            shim: locked while it runs
//   done            worker: the coordinator has received the exit; the folder may be removed
//   size            worker: bytes of the whole folder, once it is done
//
// And in <run>/ itself:
//   lease           worker: a mapped counter that grows while the worker is connected to the coordinator. If it stalls
//                   for orphan_grace, the shim ends its trainer: one rule for a crashed worker, a frozen worker and a
//                   network partition.
//   trainer.sock    worker: where trainers attach
//   .gone-N         worker: what was the folder of an ended rank; it is being removed
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/job.pb.h"

namespace muster::rundir {

// Identifies a process even if its pid is reused.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_ticks = 0;  // field 22 of /proc/<pid>/stat
  std::string boot_id;
  friend bool operator==(const ProcessId&, const ProcessId&) = default;
};

// A random id per boot of the machine.
absl::StatusOr<std::string> ReadBootId();

// NotFound: no such process.
absl::StatusOr<ProcessId> Identify(pid_t pid);
bool IsAlive(const ProcessId& process);

// Whom a trainer runs as.
struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
  mode_t umask = 077;
  friend bool operator==(const User&, const User&) = default;
};

struct Start {
  std::vector<std::string> argv;         // the trainer's; never a shell string
  std::vector<std::string> environment;  // "NAME=value", complete
  std::string working_directory;
  absl::Duration orphan_grace = absl::Minutes(30);
  absl::Duration kill_grace = absl::Seconds(10);  // SIGTERM to SIGKILL
  // Of the node, that the rank has. None: written by an older worker.
  std::optional<std::vector<uint32_t>> slots = std::nullopt;
  std::optional<User> user = std::nullopt;  // none: as the worker
};

struct Processes {
  ProcessId shim;
  ProcessId trainer;  // pid 0: not spawned
};

class RankDir {
 public:
  // `run` is the worker's run directory.
  RankDir(std::string run, RankId rank);
  // From a path as path() gives it. InvalidArgument: its last three names are no job, generation and rank.
  static absl::StatusOr<RankDir> FromPath(const std::string& path);

  const std::string& run() const { return run_; }
  const std::string& path() const { return path_; }
  const RankId& rank() const { return rank_; }
  // Where the trainer has its outbox and its progress page: path(), or `trainer` in it if it has a user of its own.
  // REQUIRES: Create.
  std::string TrainerPath() const;
  std::string TrainerPath(const Start& start) const;
  std::string ReservePath() const;

  // With a user of its own, other users may pass through the folders to the trainer's. AlreadyExists: the rank was
  // started before.
  absl::Status Create(const Start& start) const;
  absl::StatusOr<Start> ReadStart() const;
  absl::Status WriteProcesses(const Processes& processes) const;
  absl::StatusOr<Processes> ReadProcesses() const;  // NotFound: not written yet
  absl::Status WriteExit(const RankExit& exit) const;
  absl::StatusOr<RankExit> ReadExit() const;  // NotFound: not ended
  // Stores a rendezvous key of the rank for the next daemon. Not synced, since no rank survives a crash of the machine.
  absl::Status KeepKey(const std::string& name, const std::string& value) const;
  std::map<std::string, std::string> Keys() const;
  absl::Status MarkDone() const;
  bool IsDone() const;
  absl::Status Remove() const;
  // At once, however much it holds: renames it to a .gone-N, which RemoveGone removes.
  absl::Status MoveAway() const;
  // Takes as long as it takes to remove all files. Returns the first error, after it has tried the others.
  static absl::Status RemoveGone(const std::string& run);

  // Every rank folder below `run`, in order.
  static std::vector<RankDir> List(const std::string& run);

 private:
  std::string run_;
  RankId rank_;
  std::string path_;
};

// The lease of a worker's run directory. A mapped file of one counter.
class Lease {
 public:
  static absl::StatusOr<std::unique_ptr<Lease>> Open(const std::string& run, bool create);
  ~Lease();
  void Renew();
  uint64_t Read() const;

 private:
  explicit Lease(void* page) : page_(page) {}
  void* page_;
};

}  // namespace muster::rundir
