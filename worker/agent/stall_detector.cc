#include "worker/agent/stall_detector.h"

#include <algorithm>
#include <utility>

namespace muster::agent {
namespace {

constexpr absl::Duration kStallThreshold = absl::Seconds(1);
constexpr absl::Duration kFrozen = absl::Seconds(2);  // the trainer heartbeats four times a second
// A longer time between two looks means that this process itself did not run (machine asleep, cgroup frozen). The ranks
// may not have run either, so time beyond this does not count as a stall.
constexpr absl::Duration kLongestLook = absl::Seconds(2);

}  // namespace

void StallDetector::Look(SteadyTime now) {
  if (page_ == nullptr) {
    // Missing or incomplete: retried at the next look.
    absl::StatusOr<std::unique_ptr<rundir::ProgressReader>> page = rundir::ProgressReader::Open(trainer_dir_);
    if (!page.ok()) return;
    page_ = *std::move(page);
  }
  const absl::StatusOr<rundir::ProgressSeen> read = page_->Read();
  // A trainer that cuts its page makes no progress.
  const std::array<uint64_t, 5> seen =
      read.ok() ? std::array{read->step, read->op_issued, read->op_completed, read->op_exchanges, read->alive_at_stage}
                : last_;
  const uint64_t heartbeat = read.ok() ? read->heartbeat : last_heartbeat_;
  const absl::Duration since = looked_ ? std::min(now - looked_at_, kLongestLook) : absl::ZeroDuration();
  looked_at_ = now;
  stalled_ = seen == last_ && looked_ ? stalled_ + since : absl::ZeroDuration();
  silent_ = heartbeat == last_heartbeat_ && looked_ ? silent_ + since : absl::ZeroDuration();
  looked_ = true;
  last_ = seen;
  last_heartbeat_ = heartbeat;
  stall_.reset();
  op_ = seen[1] == 0 ? 0 : std::min(seen[2] + 1, seen[1]);  // all that were issued may be done, too
  if (stalled_ < kStallThreshold) return;
  stall_ = {seen[0], seen[1], seen[2], std::nullopt, stalled_, silent_ >= kFrozen};
  if (seen[3] > 0) stall_->op_exchanges = seen[3] - 1;
}

}  // namespace muster::agent
