#include "cli/interrupt.h"

#include <unistd.h>

#include <csignal>

#include "cli/exit_code.h"

namespace muster::cli {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

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
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

InterruptScope::~InterruptScope() {
  for (const int signal : kSignals) std::signal(signal, SIG_DFL);
}

bool Interrupted() { return interrupts > 0; }

}  // namespace muster::cli
