// What the processes of a program use, by /proc and NVML.
#pragma once

#include <sys/types.h>

#include <future>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "worker/exec/idle_watch.h"

namespace muster::exec {

// The program, its descendants and what these left to init in the rank's session; those that live now. Of a program
// that has ended, the program alone.
std::set<pid_t> ProcessesOf(pid_t program);

// Of the same processes. What they read and write is unknown of processes of other users, and counts as 0.
Activity ReadActivity(pid_t program);

// Asks the driver on a detached thread: with a broken GPU its calls may block for long, or never return.
class GpuLook {
 public:
  // The GPUs that CUDA_VISIBLE_DEVICES of `environment` names ("GPU-...").
  explicit GpuLook(const std::vector<std::string>& environment, std::string library = "libnvidia-ml.so.1");

  // Whether one of them computes; nullopt: there is no answer yet. False where there are none, or the driver does not
  // say. `anew`: a question of now, unless one is still open.
  std::optional<bool> Busy(bool anew);

 private:
  const std::string library_;
  std::vector<std::string> uuids_;
  std::future<bool> answer_;
};

}  // namespace muster::exec
