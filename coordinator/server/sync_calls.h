// Calls of Workers.Sync whose reply has nothing for the rank to do yet: each is asked again when the core says that its
// reply may have changed (core::AskSyncAgain, Outcome.sync_waits_until), so ranks learn of a decision at once without
// asking in a loop.
//
// Not thread-safe: the loop owns it. A rank has one call for each fragment, its newest: to ask an older one again would
// undo what the rank has said since.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/core/core.h"

namespace muster::server {

class Turn;

class SyncCalls {
 public:
  using Done = std::function<void(absl::StatusOr<SyncReply>)>;

  // Asks the core, and calls `done` once, after a commit: with the first reply that has something for the rank to do,
  // with the newest one at `deadline`, with an error of core::SyncRank, or with Cancelled once the rank asks again.
  // Returns the number of the call.
  uint64_t Begin(Turn& turn, core::SyncRank asked, SteadyTime deadline, Done done);
  // Called when the caller disconnects: finishes the call with Cancelled. Unknown numbers are ignored.
  void Cancel(uint64_t call);

  // In the turn after the one that produced the action.
  void Wake(const core::AskSyncAgain& again);
  // Asks again for calls that are due, at most 256 in a turn; the rest stay due, so the next turn follows at once.
  void AskAgain(Turn& turn);
  void EndAll(const absl::Status& why);
  std::optional<SteadyTime> NextDeadline() const;

 private:
  struct Call {
    core::SyncRank asked;
    std::string run;
    SteadyTime deadline, due;
    Done done;
  };
  void Ask(Turn& turn, uint64_t number, Call call);
  std::optional<Call> Take(uint64_t number);
  static std::pair<RankId, uint32_t> KeyOf(const Call& call);

  std::map<uint64_t, Call> calls_;
  std::map<std::pair<RankId, uint32_t>, uint64_t> of_rank_;  // by rank and fragment
  std::map<std::string, std::set<uint64_t>> of_run_;
  std::set<std::pair<SteadyTime, uint64_t>> due_;
  uint64_t next_ = 1;
};

}  // namespace muster::server
