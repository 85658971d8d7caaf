// The processes of one rank: a shim, and the trainer below it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

// Holds the rank's folder in the environment of the trainer and its children, to find them after the shim is gone.
inline constexpr char kRankDirVariable[] = "MUSTER_RANK_DIR";

// A running shim, held by a pidfd, which stays valid when the pid is reused.
class RankProcess {
 public:
  // A new shim for a folder with a start.json. The error of posix_spawn.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Spawn(const std::string& step_binary, const rundir::RankDir& dir);
  // NotFound: it has ended.
  static absl::StatusOr<std::unique_ptr<RankProcess>> Adopt(const rundir::ProcessId& shim);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  pid_t pid() const { return pid_; }
  int fd() const { return fd_; }  // readable when the shim has ended

  void Terminate();  // stop; the shim kills after its kill_grace
  void Kill();       // at once, exit record included
  void Destroy();    // kills an unresponsive shim and with it the trainer; no exit record is written
  // Reaps the shim once fd() is readable, if it is a child of this process.
  void Reap();

 private:
  RankProcess(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  const pid_t pid_;
  const int fd_;
};

// The state of a rank according to its folder and the kernel.
struct Unspawned {};  // no trainer ever ran in it, and no shim is about to start one
struct Running {
  rundir::ProcessId shim;
};
struct Ended {
  RankExit exit;  // VANISHED if there is no exit record
};
std::variant<Unspawned, Running, Ended> Examine(const rundir::RankDir& dir);

// The processes of a rank that are still there: its shim, its trainer and what those started. Without those that have
// ended and only wait to be reaped.
std::vector<rundir::ProcessRow> Remaining(const rundir::RankDir& dir);
// "process 4711 (state D)" or "processes 4711 (state D), 4712 (state t)"; at most three are named.
std::string Describe(const std::vector<rundir::ProcessRow>& processes);

// Whether process `pid` is the rank's trainer, or was started below its shim.
bool BelongsTo(pid_t pid, const rundir::RankDir& dir);

}  // namespace muster::agent
