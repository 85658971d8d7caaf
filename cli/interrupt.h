// Ctrl-C, SIGTERM and a closed terminal while following a job, or waiting for daemons to stop or for an answer: they
// stop the command, never the job or a daemon.
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
