// What a trainer is doing now, in a mapped file of its rank folder that anyone may read: the detector of hangs and of
// stragglers, at the cost of a few stores per op.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

// What a rank is at. From kOps on: an op of its schedule, that it runs or waits for: kOps + its OpKind
// (strategies/schedule/schedule.h). Below: what lies between two steps, in the order in which it comes.
enum Stage : uint64_t {
  kNoStage = 0,
  kLoading = 1,  // until the first step: meeting the others, the model, a checkpoint to resume from
  kReporting = 2,
  kValidating = 3,
  kCheckpointing = 4,
  kReading = 5,  // the next step's data
  kOps = 16,
};

// A rank makes progress when `step`, `op_issued`, `op_completed` or `alive_at_stage` changes. A rank of whom none does
// stands still; it has hung, or waits for one that has: the one that is furthest behind. A step of several ranks ends
// for all or for none, so when one has hung, soon no other gets further than to wait for it.
//
// What is no op (loading, a validation, a checkpoint) may take long and has no ops to count: a thread of the trainer
// raises `alive_at_stage` meanwhile, for as long as ranks wait for each other (Assignment.collective_deadline). So a
// slow disk is no hang, a process that is stopped is one, and a disk that never answers becomes one.
struct Progress {
  std::atomic<uint64_t> layout;  // 2; raised when a field changes its place
  std::atomic<uint64_t> step;    // finished
  // The op that the host is at: index in the schedule, plus 1; 0: none yet in this step, see `stage`.
  std::atomic<uint64_t> op_issued;
  // Ops up to here are done: index plus 1. It is op_issued - 1 while that op runs, and less while it waits for an
  // earlier one, which is number op_completed + 1. On a GPU as the host sees it, which runs ahead of the device by up
  // to a step: when the device hangs, the host comes to wait for it at the optimizer's step.
  std::atomic<uint64_t> op_completed;
  std::atomic<uint64_t> stage;           // Stage
  std::atomic<uint64_t> alive_at_stage;  // rises four times a second at a stage below kOps
  std::atomic<uint64_t> heartbeat;       // rises four times a second whatever the rank does: its process runs
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// `directory`/progress. Fields may be read and written from any thread and process; each alone is consistent.
class ProgressPage {
 public:
  // The trainer's end; keeps what is there.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Create(const std::string& directory);
  // Read-only: a store would be a fault. NotFound: no trainer made it yet. FailedPrecondition: another layout.
  static absl::StatusOr<std::unique_ptr<ProgressPage>> Open(const std::string& directory);
  ~ProgressPage();
  ProgressPage(const ProgressPage&) = delete;

  Progress* operator->() { return static_cast<Progress*>(page_); }
  const Progress* operator->() const { return static_cast<const Progress*>(page_); }

 private:
  explicit ProgressPage(void* page) : page_(page) {}
  void* page_;
};

}  // namespace muster::rundir
