// Detects that a rank makes no progress, by sampling its progress page.
//
//   StallDetector detector(dir.path());
//   detector.Look(now);  // several times a second
//   if (detector.stall().has_value()) ...
//
// Used on the loop's thread only. For an adopted rank the count starts at the adoption.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/rundir/progress.h"

namespace muster::agent {

class StallDetector {
 public:
  // `trainer_dir`: RankDir::TrainerPath; the trainer may not have started yet.
  explicit StallDetector(std::string trainer_dir) : trainer_dir_(std::move(trainer_dir)) {}

  struct Stall {
    uint64_t step = 0;  // finished
    uint64_t op_issued = 0, op_completed = 0;
    std::optional<uint64_t> op_exchanges;  // none: the trainer's build does not count them
    absl::Duration duration;               // since one of these changed, or a stage between two steps showed progress
    bool frozen = false;                   // no heartbeats either: the process is stopped or starved of CPU
  };

  void Look(SteadyTime now);
  // Index, plus 1, of the op that the rank ran or waited for at the last look; 0: between two steps, or no page yet.
  uint64_t op() const { return op_; }
  // Its last finished step then.
  uint64_t step() const { return last_[0]; }
  // A stall of at least a second. None: the rank makes progress, or has no progress page yet.
  const std::optional<Stall>& stall() const { return stall_; }

 private:
  const std::string trainer_dir_;
  std::unique_ptr<rundir::ProgressReader> page_;
  bool looked_ = false;
  SteadyTime looked_at_;
  std::array<uint64_t, 5> last_{};  // counters whose change is progress
  uint64_t last_heartbeat_ = 0;
  uint64_t op_ = 0;
  absl::Duration stalled_, silent_;
  std::optional<Stall> stall_;
};

}  // namespace muster::agent
