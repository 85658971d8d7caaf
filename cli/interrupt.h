// Ctrl-C, SIGTERM and a closed terminal while following a job: they stop following, never the job.
#pragma once

#include <csignal>

namespace muster::cli {

// While one exists, the first SIGINT, SIGTERM or SIGHUP is only recorded; a second one exits with 130.
class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

 private:
  struct sigaction before_[3];
};

bool Interrupted();

}  // namespace muster::cli
