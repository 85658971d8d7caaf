// Faults of a daemon or host while a job of two ranks runs there: for daemon_fault_test and bench/faults.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tests/cluster/cluster.h"

namespace muster::faults {

enum class DaemonFaultKind {
  kKillWorker,       // SIGKILL of a worker daemon, restarted at once: its ranks are adopted
  kFreezeWorker,     // SIGSTOP of a worker daemon until the job runs elsewhere, then SIGCONT
  kLoseHost,         // SIGKILL of a worker daemon and all its processes; restarted when the job runs elsewhere
  kKillCoordinator,  // SIGKILL, restarted at once: no rank notices
};
const char* Name(DaemonFaultKind kind);

struct DaemonOutcome {
  uint64_t generations = 0;
  absl::Duration detection;  // until the coordinator recorded that the node is silent; zero: it should not
  absl::Duration recovery;   // until the last rank of the next generation was spawned; zero: there should be none
  absl::Duration back;       // until the killed process had its ranks again, or served again
  std::string weights;
};

// Injects the fault at the worker of the first rank once that has finished `step` steps. `cluster` has a coordinator
// and workers 0 and 1, each with slots for the whole job, and has them again afterwards. Errors say what did not
// happen, or should not have.
absl::StatusOr<DaemonOutcome> StrikeDaemonOf(cluster::Cluster& cluster, DaemonFaultKind kind,
                                             const std::string& strategy, uint64_t step, const std::string& name);

}  // namespace muster::faults
