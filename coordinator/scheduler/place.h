// Which slots a gang gets. Pure: snapshots in, a decision or none and its reason out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/ids.h"
#include "coordinator/scheduler/queue.h"
#include "proto/job.pb.h"

namespace muster::scheduler {

enum class Availability {
  kTakesRanks,  // live and not draining
  kAway,        // thought to come back: nothing is placed there now, but a job may hope for its slots
  kDraining,
  kLost,
};

struct SlotView {
  uint32_t index = 0;
  Device device = DEVICE_CPU;
  Claim holder;               // no job: free
  uint64_t memory_bytes = 0;  // 0: not known, taken to be enough
};

struct NodeView {
  NodeId id;
  std::vector<SlotView> slots;
  Availability availability = Availability::kTakesRanks;
};

struct Demand {
  uint32_t ranks = 1;
  Device device = DEVICE_AUTO;
  uint64_t slot_bytes = 0;   // on slots of no less memory
  uint64_t below_bytes = 0;  // 0: any; else only on slots that are known to have less
  uint32_t least = 0;        // of the ranks, that suffice where there are not enough slots for all; 0: all or none

  uint32_t needed() const { return least == 0 ? ranks : std::min(least, ranks); }
};

struct RankSlot {
  NodeId node;
  uint32_t slot = 0;
  uint64_t memory_bytes = 0;
};

struct Decision {
  std::vector<RankSlot> ranks;         // by rank; empty: it cannot start now
  Device device = DEVICE_UNSPECIFIED;  // auto, resolved
  std::string reason;                  // why not, for people; empty if it can
  // It would fit if everything that runs now had ended and the away nodes were back.
  bool fits_when_idle = false;
};

// The slots of all nodes, counted once for the many jobs that ask. A refusal costs the same for any number of nodes.
// Not thread-safe.
class Cluster {
 public:
  explicit Cluster(const std::vector<NodeView>& nodes);

  // auto: cuda where any node that takes ranks or is away has a cuda slot, else cpu.
  Device Resolve(Device wanted) const;

  // All ranks, or where that does not go as many as there are slots for, but at least those needed; or none. On as few
  // nodes as possible: as soon as one node holds all the ranks that are left, the fullest such; until then the
  // emptiest; ties by node id. The ranks on a node follow each other, on ascending slots.
  Decision Place(const Demand& demand) const;
  bool FitsWhenIdle(const Demand& demand) const;

  // The slots of a decision are no longer free.
  void Take(const Decision& decision, const Claim& holder);

  // That suit a demand of a resolved device, on nodes that take ranks.
  uint64_t Slots(const Demand& demand) const { return Count(demand).total; }
  uint64_t FreeSlots(const Demand& demand) const { return Count(demand).free; }
  // Those held by jobs that come after `claim` in the order.
  uint64_t SlotsHeldBehind(const Claim& claim, const Demand& demand) const;

  // Whether a slot of so much memory is one that the demand may have.
  static bool Suits(uint64_t memory_bytes, const Demand& demand);

 private:
  struct Counts {
    uint64_t total = 0;  // of nodes that take ranks
    uint64_t hoped = 0;  // and of those that are away
    uint64_t free = 0;
  };
  struct FreeSlot {
    uint32_t index = 0;
    uint64_t memory_bytes = 0;
  };
  struct Supply {  // of one device
    Counts all;
    std::map<uint64_t, Counts> by_memory;
    std::map<NodeId, std::vector<FreeSlot>> free_slots;  // of nodes that take ranks, ascending
    struct User {
      Claim claim;
      std::map<uint64_t, uint64_t> slots;  // by memory
    };
    std::map<JobId, User> users;  // on nodes that take ranks
  };
  const Supply& Of(Device device) const;
  // Costs more only where memory matters: as much as there are different sizes of slots.
  Counts Count(const Demand& demand) const;
  uint64_t Largest(Device device) const;
  std::string WhyNot(const Demand& demand, Device device) const;

  Supply cpu_, cuda_;
  bool any_node_ = false;
  bool any_takes_ranks_ = false;
  std::string unavailable_;  // "1 away, 2 draining"
};

}  // namespace muster::scheduler
