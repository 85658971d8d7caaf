// The kernel's process table (/proc/<pid>/stat).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::rundir {

struct ProcessRow {
  pid_t pid = 0;
  char state = '?';  // 'Z': a zombie
  pid_t parent = 0;
  pid_t group = 0;
  pid_t session = 0;
  uint64_t start_ticks = 0;  // since boot
  uint64_t cpu_ticks = 0;    // that it and the children that it has waited for have used
};

// NotFound: no such process.
absl::StatusOr<ProcessRow> ReadProcess(pid_t pid);

// Threads of a process that have not been reaped, zombies included; 0: there is no such process.
size_t CountThreads(pid_t pid);

// All current processes, in no order.
std::vector<ProcessRow> ListProcesses();

}  // namespace muster::rundir
