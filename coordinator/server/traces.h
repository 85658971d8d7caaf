// Pending Trace requests: collects the traces that ranks report. In memory.
//
// Not thread-safe: the loop owns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/clock.h"
#include "common/ids.h"
#include "proto/trace.pb.h"

namespace muster::server {

class Traces {
 public:
  using Key = std::pair<JobId, uint64_t>;  // job, generation
  // The traces received, by rank (empty ones included), and the ranks that have not reported their last step.
  struct Result {
    absl::Status status;  // Aborted: the generation has ended; Cancelled; Unavailable. Else OK, also at the deadline
    std::vector<RankTrace> ranks;
    std::vector<uint32_t> missing;
  };
  using Done = std::function<void(Result)>;

  // Calls `done` once: when every rank has reported its last step, at the deadline, or at the end of the generation.
  // `request_id` is unique.
  void Begin(const Key& generation, uint64_t request_id, const std::vector<uint32_t>& ranks, SteadyTime deadline,
             Done done);
  // Ignored if no request waits for it.
  void Add(const RankId& rank, StepTrace step);
  // Called when the caller disconnects. Unknown ids are ignored.
  void Cancel(uint64_t request_id);

  void End(const Key& generation);
  void EndAll(const absl::Status& why);
  void Expire(SteadyTime now);
  std::optional<SteadyTime> NextDeadline() const;

 private:
  struct Wait {
    Key generation;
    SteadyTime deadline;
    Done done;
    std::map<uint32_t, RankTrace> ranks;
  };
  void Finish(uint64_t request_id, const absl::Status& status);
  template <typename Matches>
  void FinishAll(const Matches& matches, const absl::Status& status);

  std::map<uint64_t, Wait> waits_;  // by request_id
};

}  // namespace muster::server
