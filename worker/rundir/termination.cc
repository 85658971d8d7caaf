#include "worker/rundir/termination.h"

#include <signal.h>

#include <atomic>

namespace muster::rundir {
namespace {

std::atomic<bool> terminated = false;
static_assert(std::atomic<bool>::is_always_lock_free, "set by a signal handler");

}  // namespace

void CatchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { terminated = true; };
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGXFSZ, SIG_IGN);
}

bool Terminated() { return terminated; }

}  // namespace muster::rundir
