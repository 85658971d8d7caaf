// The key-value rendezvous of generations, through which ranks exchange NCCL ids and addresses. In memory; removed with
// the generation.
//
// Not thread-safe: the loop owns it. Callers check that the generation is current. The cost of a Set is proportional to
// the waits that it completes, that of a turn to the waits that have expired: a thousand ranks may wait for one key.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"

namespace muster::server {

class Rendezvous {
 public:
  static constexpr size_t kMaxNameBytes = 256;
  static constexpr size_t kMaxValueBytes = 64 * 1024;
  static constexpr size_t kMaxGenerationBytes = 16 * 1024 * 1024;
  static constexpr size_t kMaxWaits = 16'384;  // of one generation

  using Key = std::pair<JobId, uint64_t>;  // job, generation
  using Done = std::function<void(absl::StatusOr<std::string>)>;

  // InvalidArgument: the name's length. ResourceExhausted: a value over 64 KiB, or over 16 MiB in the generation.
  // AlreadyExists: already set to another value; setting the same value again is OK.
  absl::Status Set(const Key& generation, const std::string& name, const std::string& value);

  // Calls `done` once: immediately if the value is set, or with NotFound if `deadline` is not after `now`; otherwise
  // when the value is set, at the deadline (DeadlineExceeded), or at the end of the generation (Aborted). Returns the
  // number of the wait, or 0 if `done` was called.
  uint64_t Get(const Key& generation, const std::string& name, SteadyTime deadline, SteadyTime now, Done done);
  // Called when the caller disconnects: finishes the wait with Cancelled. Unknown numbers are ignored.
  void Cancel(uint64_t wait);

  void End(const Key& generation);
  void EndAll(const absl::Status& why);
  void Expire(SteadyTime now);
  std::optional<SteadyTime> NextDeadline() const;

 private:
  struct Wait {
    Key generation;
    std::string name;
    SteadyTime deadline;
    Done done;
  };
  struct Generation {
    std::map<std::string, std::string> values;
    size_t bytes = 0;
    std::map<std::string, std::set<uint64_t>> waits;  // wait numbers by key name
    size_t wait_count = 0;
  };
  void Finish(uint64_t wait, absl::StatusOr<std::string> result);
  // Those of `numbers` that still wait, since a callback may finish others.
  void FinishAll(const std::vector<uint64_t>& numbers, const absl::StatusOr<std::string>& result);

  std::map<Key, Generation> generations_;
  std::map<uint64_t, Wait> waits_;
  std::set<std::pair<SteadyTime, uint64_t>> deadlines_;  // of the waits
  uint64_t next_wait_ = 1;
};

}  // namespace muster::server
