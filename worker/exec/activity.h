// What the processes of a program use, by /proc and NVML.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <vector>

#include "worker/exec/idle_watch.h"

namespace muster::exec {

// The program and its descendants that live now; of a program that has ended, the program alone.
std::set<pid_t> ProcessesOf(pid_t program);

// Of the program and its descendants. What they read and write is unknown of processes of other users, and counts as 0.
Activity ReadActivity(pid_t program);

// Whether one of the GPUs that CUDA_VISIBLE_DEVICES of `environment` names ("GPU-...") computes or copies now. False
// where there are none, or the driver does not say.
bool GpuBusy(const std::vector<std::string>& environment);

}  // namespace muster::exec
