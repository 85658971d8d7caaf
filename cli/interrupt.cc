#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <iterator>

#include "cli/exit_code.h"

namespace muster::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};

// A signal handler can reach only globals.
volatile std::sig_atomic_t interrupts = 0;

void OnInterrupt(int) {
  interrupts = interrupts + 1;
  if (interrupts > 1) _exit(kInterrupted);
}

}  // namespace

InterruptScope::InterruptScope() {
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &before_[i]);
    // nohup ignores it.
    if (kSignals[i] == SIGHUP && before_[i].sa_handler == SIG_IGN) sigaction(SIGHUP, &before_[i], nullptr);
  }
}

InterruptScope::~InterruptScope() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

bool Interrupted() { return interrupts > 0; }

}  // namespace muster::cli
