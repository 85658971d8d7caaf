// Ctrl-C and SIGTERM while following a job: they stop following, never the job.
#pragma once

namespace muster::cli {

// While one exists, the first SIGINT or SIGTERM is only recorded; a second one exits with 130.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

bool Interrupted();

}  // namespace muster::cli
