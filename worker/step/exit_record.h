// What a trainer's end is called. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "proto/job.pb.h"

namespace muster::step {

// Why the shim itself ended the trainer, if it did.
enum class Intervention { kNone, kTold, kOrphaned };

struct Ending {
  uint32_t rank = 0;
  std::string spawn_error;  // not empty: it never ran
  int wait_status = 0;      // as waitpid gives it
  Intervention intervention = Intervention::kNone;
  bool killed = false;  // SIGKILL by the shim
  absl::Duration orphan_grace;
  absl::Duration kill_grace;
  uint64_t peak_memory_bytes = 0;
  absl::Time ended;
  std::vector<std::string> last_lines;
};

// COMPLETED for exit code 0 (the worker, who knows of the outbox and of goals, may call it STOPPED); STOPPED for a
// signal that the shim sent on request; ORPHANED for whatever follows its orphan deadline; else FAILED.
RankExit MakeExit(const Ending& ending);

}  // namespace muster::step
