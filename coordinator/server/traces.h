// Traces that somebody waits for: what ranks tell of the steps that they were asked to record. In memory.
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
  // What has come, a rank each, those that told of nothing too, and who has not told of its last step.
  struct Told {
    absl::Status status;  // Aborted: the generation has ended; Cancelled; Unavailable. Else OK, also at the deadline
    std::vector<RankTrace> ranks;
    std::vector<uint32_t> missing;
  };
  using Done = std::function<void(Told)>;

  // Calls `done` once: when every rank has told of its last step, at the deadline, or at the end of the generation.
  // `request_id` is of nobody else.
  void Begin(const Key& generation, uint64_t request_id, const std::vector<uint32_t>& ranks, SteadyTime deadline,
             Done done);
  // Of no use if nobody waits for it.
  void Add(const RankId& rank, StepTrace step);
  // The caller has gone. Unknown ones are ignored.
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
