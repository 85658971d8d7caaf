// Watches over the trainer of one rank until it and everything that it started has ended.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/rundir/log.h"
#include "worker/rundir/rundir.h"
#include "worker/shim/exit_record.h"
#include "worker/shim/launch.h"

namespace muster::step {

// SIGTERM to the shim: SIGTERM to the trainer's group, SIGKILL after kill_grace. SIGUSR1: SIGKILL at once. A lease that
// is not renewed for orphan_grace: as SIGTERM. Output goes to the log; a full disk does not block the trainer.
class Supervisor {
 public:
  // `signals`: a signalfd of SIGCHLD, SIGTERM and SIGUSR1, which are blocked. `lease` may be null (it could not be
  // opened) and then counts as never renewed. All arguments outlive the supervisor.
  Supervisor(const rundir::Start& start, const rundir::Lease* lease, rundir::LogWriter& log, const Clock& clock,
             int signals);

  // Returns all of Ending but `rank`, once no descendant is left (or none can be killed) and the output is in the log.
  Ending Run(const Trainer& trainer);

 private:
  void HandleSignals();
  void Reap();
  void CheckLease();
  void Terminate(Intervention why);
  void Kill();
  void KillDescendants();
  // False: end of file.
  bool Pump();
  void Say(const std::string& line);

  const rundir::Start& start_;
  const rundir::Lease* const lease_;
  rundir::LogWriter& log_;
  const Clock& clock_;
  const int signals_;

  Trainer trainer_;
  std::string tail_;  // last output, including bytes that a full disk dropped
  Ending ending_;
  bool trainer_ended_ = false;
  bool children_left_ = true;
  SteadyTime kill_at_;  // once ending_.intervention is set
  uint64_t lease_value_ = 0;
  SteadyTime lease_looked_;
  absl::Duration lease_stood_;
};

}  // namespace muster::step
