// Background processes that outlive the command that started them, and how to find them again.
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

// Pid and start time (clock ticks since boot, field 22 of /proc/PID/stat): pids are reused, pairs are not.
struct ProcessId {
  pid_t pid = 0;
  uint64_t start = 0;
};

bool Alive(const ProcessId& process);
// When the process started.
absl::Duration RunningFor(const ProcessId& process);

struct Daemon {
  std::string program;  // path
  std::vector<std::string> arguments;
  std::string log;         // stdout and stderr are appended to it
  std::vector<int> cores;  // cores for it and its children; empty: those of this process
};

// The cores that this process may use, ascending.
std::vector<int> UsableCores();
// The cores of node `index` of `nodes`, ascending: an even share of neighboring cores. Where there are more slots than
// cores: as many cores as the node has `slots` (at least one), round-robin, so that ranks of one node do not share a
// core beside an idle one.
std::vector<int> ShareOfCores(const std::vector<int>& cores, int index, int nodes, int slots);

// Starts it in a new session, with standard input from /dev/null and no other descriptors. NotFound: no such program.
absl::StatusOr<ProcessId> StartDaemon(const Daemon& daemon);

// Sends a signal through a pidfd, so that it cannot reach a process that reused the pid. NotFound: the process is gone.
absl::Status Signal(const ProcessId& process, int signal);

// Waits for the process to exit. False: it still runs.
bool WaitForEnd(const ProcessId& process, absl::Duration at_most);

// Its arguments, without the program; empty: the process is gone.
std::vector<std::string> ArgumentsOf(const ProcessId& process);

// The process that listens at the Unix socket `path`; pid 0: it is of another pid namespace. Nothing: none does, or it
// is not for this user.
std::optional<pid_t> ListenerAt(const std::string& path);

// Whether a process listens at a Unix socket that was bound to `path`, whose file is gone since: no client reaches it.
bool IsSocketGone(const std::string& path);

// Reads "PID START" from a file. A missing or damaged file gives nothing.
std::optional<ProcessId> ReadPidFile(const std::string& path);
absl::Status WritePidFile(const std::string& path, const ProcessId& process);

// The last `count` lines of a file, indented, from byte `from` on; empty if there are none.
std::string LastLines(const std::string& path, uint64_t from, int count);
uint64_t FileSize(const std::string& path);

}  // namespace muster::cli
