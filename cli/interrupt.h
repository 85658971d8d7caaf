// Ctrl-C while a job is followed: it ends the following, never the job.
#pragma once

namespace muster::cli {

// While one lives, the first SIGINT is only noted; a second one ends the process with 130.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

bool Interrupted();

}  // namespace muster::cli
