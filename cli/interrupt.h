// Ctrl-C while following a job: it stops following, never the job.
#pragma once

namespace muster::cli {

// While one exists, the first SIGINT is only recorded; a second one exits with 130.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;
};

bool Interrupted();

}  // namespace muster::cli
