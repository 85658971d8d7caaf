// The key-value rendezvous of generations: how ranks exchange NCCL ids and addresses. In memory; gone with the
// generation.
//
// Not thread-safe: the loop owns it. Whoever calls has checked that the generation is current. A Set costs what it
// wakes, a turn of the loop what has expired, whatever else waits: a thousand ranks may wait for one key.
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

  // InvalidArgument: the name's length. ResourceExhausted: a value over 64 KiB, or 16 MiB in the generation.
  // AlreadyExists: set before to another value; the same value again is OK.
  absl::Status Set(const Key& generation, const std::string& name, const std::string& value);

  // Calls `done` once: at once if the value is there or `deadline` is not behind `now` (NotFound); else when it is set,
  // at the deadline (DeadlineExceeded), or at the end of the generation (Aborted). Returns the wait's number, 0 if
  // there is none.
  uint64_t Get(const Key& generation, const std::string& name, SteadyTime deadline, SteadyTime now, Done done);
  // The caller has gone: Cancelled. Unknown numbers are ignored.
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
    std::map<std::string, std::set<uint64_t>> waits;  // by the name that they wait for
    size_t wait_count = 0;
  };
  void Finish(uint64_t wait, absl::StatusOr<std::string> result);
  // Those of `numbers` that still wait: an answer may end others.
  void FinishAll(const std::vector<uint64_t>& numbers, const absl::StatusOr<std::string>& result);

  std::map<Key, Generation> generations_;
  std::map<uint64_t, Wait> waits_;
  std::set<std::pair<SteadyTime, uint64_t>> deadlines_;  // of the waits
  uint64_t next_wait_ = 1;
};

}  // namespace muster::server
