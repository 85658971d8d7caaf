// From what the coordinator wants and what is here to what must be done. Pure: no process, file or clock.
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

enum class Told { kNothing, kStop, kKill };

// A rank with a folder here that is not done with.
struct LocalRank {
  RankId rank;
  bool ended = false;
  Told told = Told::kNothing;
  // On which it runs; none: not known, of a rank that an earlier daemon started and that is to stop.
  std::optional<std::vector<uint32_t>> slots = std::vector<uint32_t>();
};

struct Operation {
  enum Kind {
    kStart,   // make its folder and spawn it
    kStop,    // as its Stop, or the daemon's own end, says
    kKill,    // it is not to run
    kFinish,  // it has ended, and the coordinator knows
  };
  Kind kind;
  RankId rank;
  friend bool operator==(const Operation&, const Operation&) = default;
};
std::ostream& operator<<(std::ostream& out, const Operation& operation);  // "kill a/1/0", for tests and logs

struct Circumstances {
  // The coordinator itself said so on a stream of this daemon. Else `desired` was read from disk after a restart: it
  // may be out of date, so nothing is started, killed or forgotten on its word.
  bool fresh = false;
  // The daemon is about to end: what runs is to stop, nothing is to start.
  bool draining = false;
};

// Ordered by rank, what frees slots before what takes them. Carried out, it leaves nothing to do: the same call on the
// outcome returns nothing. A rank starts once: one that has ended is never started again. Nor is one started while
// another runs on a slot of its own (of a lost generation, and being killed): it waits for the call that follows the
// end.
std::vector<Operation> Reconcile(const Desired& desired, const std::vector<LocalRank>& local,
                                 const Circumstances& circumstances);

}  // namespace muster::agent
