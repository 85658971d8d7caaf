// For how long a rank has stood still, as its progress page shows it to whoever looks often.
//
//   StallDetector stall(dir.path());
//   stall.Look(now);  // several times a second
//   if (stall.told().has_value()) ...
//
// Of the loop's thread. A rank that was adopted begins anew: what it did before is not known.
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
  // `rank_dir`: of a rank whose trainer may not have come yet.
  explicit StallDetector(std::string rank_dir) : rank_dir_(std::move(rank_dir)) {}

  struct Seen {
    uint64_t step = 0;  // finished
    uint64_t op_issued = 0, op_completed = 0;
    absl::Duration still;  // since one of them changed, or a stage between two steps was alive
    bool frozen = false;   // nor does its process run at all: it is stopped, or starved
  };

  void Look(SteadyTime now);
  // Of a rank that stands still for a second and longer. None: it makes progress, or shows none yet.
  const std::optional<Seen>& told() const { return told_; }

 private:
  const std::string rank_dir_;
  std::unique_ptr<rundir::ProgressPage> page_;
  bool looked_ = false;
  SteadyTime looked_at_;
  std::array<uint64_t, 4> last_{};  // what makes progress
  uint64_t last_heartbeat_ = 0;
  absl::Duration still_, silent_;
  std::optional<Seen> told_;
};

}  // namespace muster::agent
