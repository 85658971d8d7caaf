// Computes the operations that bring the local ranks to the desired state. Pure: no process, file or clock.
#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <vector>

#include "common/ids.h"
#include "proto/worker.pb.h"

namespace muster::agent {

RankId RankOf(const RankKey& key);
RankKey KeyOf(const RankId& rank);

// How far the termination of a rank has been requested.
enum class Termination { kNone, kStop, kKill };

// A rank with an unfinished folder on this node.
struct LocalRank {
  RankId rank;
  bool ended = false;
  Termination termination = Termination::kNone;
  // The slots it runs on; none: unknown (an earlier daemon started it, and it is stopping).
  std::optional<std::vector<uint32_t>> slots = std::vector<uint32_t>();
  bool stuck = false;  // it has ended, but its processes do not, so its slots are not free
};

struct Operation {
  enum Kind {
    kStart,   // make its folder and spawn it
    kStop,    // as its Stop, or the daemon's own end, says
    kKill,    // it is not in the desired state
    kFinish,  // it has ended, its processes too, and the coordinator knows
  };
  Kind kind;
  RankId rank;
  friend bool operator==(const Operation&, const Operation&) = default;
};
std::ostream& operator<<(std::ostream& out, const Operation& operation);  // "kill a/1/0", for tests and logs

struct Circumstances {
  // `desired` was received on a stream of this daemon. Otherwise it was read from disk after a restart and may be
  // stale, so it does not start, kill or finish anything.
  bool fresh = false;
  // The daemon is draining: running ranks stop, and none starts.
  bool draining = false;
};

// Ordered by rank; operations that free slots come before those that take them. Idempotent: after the operations are
// carried out, the next call returns none. A rank that has ended is never started again. A rank does not start while
// another (of a lost generation, being killed) still runs on one of its slots; it starts in the call after that end.
std::vector<Operation> Reconcile(const Desired& desired, const std::vector<LocalRank>& local,
                                 const Circumstances& circumstances);

}  // namespace muster::agent
