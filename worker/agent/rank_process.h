// The processes of one rank: a shim, and the trainer below it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

// Names the rank's folder to the trainer and to all that it starts: how they are known when the shim is gone.
inline constexpr char kRankDirVariable[] = "MUSTER_RANK_DIR";

// A living shim, by a descriptor that stays its own when its number is used again.
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
  void Destroy();    // the shim itself, where it does not obey: the trainer dies with it, nobody records how
  // Once fd() is readable: no zombie stays, if it was a child of this process.
  void Reap();

 private:
  RankProcess(pid_t pid, int fd) : pid_(pid), fd_(fd) {}
  const pid_t pid_;
  const int fd_;
};

// What a rank's folder and the kernel tell about it.
struct Unspawned {};  // no trainer ever ran in it, and no shim is about to start one
struct Running {
  rundir::ProcessId shim;
};
struct Ended {
  RankExit exit;  // VANISHED when nobody wrote it
};
std::variant<Unspawned, Running, Ended> Examine(const rundir::RankDir& dir);

// Whether process `pid` is the rank's trainer, or was started below its shim.
bool BelongsTo(pid_t pid, const rundir::RankDir& dir);

}  // namespace muster::agent
