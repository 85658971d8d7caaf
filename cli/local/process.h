// Background processes that outlive the command that started them, and are found again by it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace muster::cli {

// Pid and start time (clock ticks since boot, field 22 of /proc/PID/stat): pids are used again, pairs are not.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;
};

// Nothing: there is no such process, or only its remains.
std::optional<ProcessId> FindProcess(pid_t pid);
bool Alive(const ProcessId& process);
// Since when it runs.
absl::Duration RunningFor(const ProcessId& process);

struct Daemon {
  std::string program;  // path
  std::vector<std::string> arguments;
  std::string log;         // stdout and stderr are appended to it
  std::vector<int> cores;  // that it and its children may use; empty: those of this process
};

// The cores that this process may use, ascending.
std::vector<int> UsableCores();
// Of node `index` of `nodes`, ascending: an even share, neighbours together; where there are more slots than cores, as
// many as it has `slots` (at least one), in turns, so that ranks of one node do not share a core beside an idle one.
std::vector<int> ShareOfCores(const std::vector<int>& cores, int index, int nodes, int slots);

// A session of its own, standard input from /dev/null, no other descriptors. NotFound: no such program.
absl::StatusOr<ProcessId> StartDaemon(const Daemon& daemon);

// Sends a signal, through a pidfd, so that it cannot hit a process that took the pid over in between. NotFound: it is
// gone.
absl::Status Signal(const ProcessId& process, int signal);

// Waits for its end. False: it still runs.
bool WaitForEnd(const ProcessId& process, absl::Duration at_most);

// "PID START" in a file. A missing or damaged file is nothing.
std::optional<ProcessId> ReadPidFile(const std::string& path);
absl::Status WritePidFile(const std::string& path, const ProcessId& process);

// The last `count` lines of a file, indented, from byte `from` on; empty when there are none.
std::string LastLines(const std::string& path, uint64_t from, int count);
uint64_t FileSize(const std::string& path);

}  // namespace muster::cli
