// The coordinator's process for measurements: started, killed, restarted with the same state.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster::bench {

class Coordinator {
 public:
  // `folder` exists and outlives this object; `flags` are further flags.
  Coordinator(std::string program, std::string folder, std::vector<std::string> flags);
  ~Coordinator();  // SIGKILL
  Coordinator(const Coordinator&) = delete;

  // Returns when the coordinator prints that it listens; false: it does not, and stderr says why.
  bool Start();
  void Kill();

  std::string address() const { return "unix:" + folder_ + "/run/c.sock"; }
  size_t ResidentBytes() const;
  absl::Duration CpuTime() const;  // of all its threads

 private:
  const std::string program_, folder_;
  const std::vector<std::string> flags_;
  pid_t pid_ = -1;
};

// Of all its threads. Zero: it has gone.
absl::Duration CpuTimeOf(pid_t process);

}  // namespace muster::bench
