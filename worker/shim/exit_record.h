// Classifies a trainer's exit. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace muster::step {

// Why the shim itself ended the trainer, if it did.
enum class Intervention { kNone, kRequested, kOrphaned };

struct Ending {
  uint32_t rank = 0;
  std::string spawn_error;  // not empty: the trainer never ran
  int wait_status = 0;      // as waitpid gives it
  Intervention intervention = Intervention::kNone;
  bool killed = false;  // SIGKILL by the shim
  absl::Duration orphan_grace;
  absl::Duration kill_grace;
  uint64_t peak_memory_bytes = 0;
  absl::Time ended;
  std::vector<std::string> last_lines;
};

// COMPLETED: exit code 0 (the worker, which knows the outbox and the desired state, may refine it to STOPPED). STOPPED:
// ended by a signal that the shim sent on request. ORPHANED: any end after the orphan deadline. Else FAILED.
RankExit MakeExit(const Ending& ending);

}  // namespace muster::step
