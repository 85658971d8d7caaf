// What a trainer is doing now, in a mapped file of its rank folder that anyone may read: the detector of hangs and of
// stragglers, at the cost of a store per op.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

struct Progress {
  std::atomic<uint64_t> layout;        // 1; raised when a field changes its place
  std::atomic<uint64_t> step;          // finished
  std::atomic<uint64_t> op_issued;     // index in the schedule, plus 1; 0: none yet in this step
  std::atomic<uint64_t> op_completed;  // likewise
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

  Progress* operator->() { return static_cast<Progress*>(page_); }
  const Progress* operator->() const { return static_cast<const Progress*>(page_); }

 private:
  explicit ProgressPage(void* page) : page_(page) {}
  void* page_;
};

}  // namespace muster::rundir
