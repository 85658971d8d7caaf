// The progress page: a mapped file in the rank folder where a trainer publishes its current op. The source for the
// detection of hangs and stragglers, at the cost of a few stores per op.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

// A rank's current stage. From kOps on: the op of its schedule that it runs or waits for, as kOps + its OpKind
// (strategies/schedule/schedule.h). Below: the stages between two steps, in their order.
enum Stage : uint64_t {
  kNoStage = 0,
  kLoading = 1,  // until the first step: joining the groups, the model, a checkpoint to resume from
  kReporting = 2,
  kValidating = 3,
  kCheckpointing = 4,
  kReading = 5,  // the next step's data
  kSyncing = 6,  // an exchange with other replicas
  kOps = 16,
};

// A rank makes progress when `step`, `op_issued`, `op_completed`, `op_exchanges` or `alive_at_stage` changes; otherwise
// it stalls. A stalled rank hangs, or waits for a rank that hangs: the one with the least progress. All ranks finish a
// step together, so after a hang all other ranks soon wait for the hung one.
//
// Stages without ops (loading, validation, a checkpoint) may take long. A thread of the trainer raises `alive_at_stage`
// during them, for at most Assignment.collective_deadline. So a slow disk is not a hang, a stopped process is one, and
// a disk that never answers becomes one.
struct Progress {
  std::atomic<uint64_t> layout;  // version 2; raised when the layout changes
  std::atomic<uint64_t> step;    // finished
  // The host's current op: index in the schedule, plus 1; 0: none yet in this step, see `stage`.
  std::atomic<uint64_t> op_issued;
  // The last completed op: index plus 1. It is op_issued - 1 while that op runs, and less while the op waits for the
  // earlier op op_completed + 1. On a GPU the host issues a step's ops ahead of the device; at the step's end it shows
  // the earliest op that the device has not done, so a hang names that one.
  std::atomic<uint64_t> op_completed;
  std::atomic<uint64_t> stage;           // Stage
  std::atomic<uint64_t> alive_at_stage;  // grows four times a second in stages below kOps
  std::atomic<uint64_t> heartbeat;       // grows four times a second while the process runs
  // How often the op that was issued last has begun to wait for what its unit exchanges with other ranks inside its
  // pass, plus 1; 0: this build does not count. Ranks that compute units together are at the same op: the one that
  // hangs has begun fewer.
  std::atomic<uint64_t> op_exchanges;
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
// As it was at some moment.
struct ProgressSeen {
  uint64_t layout, step, op_issued, op_completed, stage, alive_at_stage, heartbeat, op_exchanges;
};
static_assert(sizeof(ProgressSeen) == sizeof(Progress));

// `directory`/progress. Fields may be read and written from any thread and process; each alone is consistent.
class ProgressPage {
 public:
  // For the trainer; keeps existing content.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Create(const std::string& directory);
  // Maps it read-only. NotFound: no trainer has created it yet. FailedPrecondition: another layout.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Open(const std::string& directory);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;

  Progress* operator->() { return static_cast<Progress*>(page_); }
  const Progress* operator->() const { return static_cast<const Progress*>(page_); }

 private:
  explicit ProgressPage(void* page) : page_(page) {}
  void* page_;
};

// The page as the worker daemon sees it. It reads and does not map: whoever runs the trainer may cut the file, and then
// a mapped page would kill the daemon (SIGBUS).
class ProgressReader {
 public:
  // Errors as ProgressPage::Open. DataLoss: it is no regular file, or too short.
  static absl::StatusOr<std::unique_ptr<ProgressReader>> Open(const std::string& directory);
  ~ProgressReader();
  ProgressReader(const ProgressReader&) = delete;

  absl::StatusOr<ProgressSeen> Read() const;  // DataLoss: it became too short

 private:
  explicit ProgressReader(int descriptor) : descriptor_(descriptor) {}
  const int descriptor_;
};

}  // namespace muster::rundir
