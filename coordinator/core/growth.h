// Jobs that run on fewer ranks than they request. A job shrinks when a generation starts: it gets the most ranks that
// there are free slots for and the planner accepts. It grows by an orderly stop with a checkpoint. Private to
// coordinator/core.
#pragma once

#include "coordinator/core/queue.h"

namespace muster::core {

class Growth {
 public:
  // All outlive it.
  Growth(const Options* options, Records* records, Plans* plans, Queue* queue, Generations* generations)
      : options_(options), records_(records), plans_(plans), queue_(queue), generations_(generations) {}

  // Called after its generation has run for a while, and then periodically. Slots count as free when two checks in a
  // row find them, so a flapping node does not cause a resize.
  void Check(JobEntry& job, Transaction& transaction);

 private:
  // kSome: slots for more ranks are free, the planner accepts them, and no queued job can use them.
  enum class Room { kNone, kSome, kNotKnownYet };
  Room Find(JobEntry& job);

  const Options* const options_;
  Records* const records_;
  Plans* const plans_;
  Queue* const queue_;
  Generations* const generations_;
};

}  // namespace muster::core
