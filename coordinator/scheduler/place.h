// Which slots a gang gets. Pure: snapshots in, a decision or none and its reason out.
#pragma once

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
  Claim holder;  // no job: free
};

struct NodeView {
  NodeId id;
  std::vector<SlotView> slots;
  Availability availability = Availability::kTakesRanks;
};

struct Demand {
  uint32_t ranks = 1;
  Device device = DEVICE_AUTO;
};

struct RankSlot {
  NodeId node;
  uint32_t slot = 0;
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

  // All ranks or none, on as few nodes as possible: as soon as one node holds all the ranks that are left, the fullest
  // such; until then the emptiest; ties by node id. The ranks on a node follow each other, on ascending slots.
  Decision Place(const Demand& demand) const;
  bool FitsWhenIdle(const Demand& demand) const;

  // The slots of a decision are no longer free.
  void Take(const Decision& decision, const Claim& holder);

  // Of a resolved device, on nodes that take ranks.
  uint64_t Slots(Device device) const { return Of(device).total; }
  uint64_t FreeSlots(Device device) const { return Of(device).free; }
  // Held by jobs that come after `claim` in the order.
  uint64_t SlotsHeldBehind(const Claim& claim, Device device) const;

 private:
  struct Supply {        // of one device
    uint64_t total = 0;  // of nodes that take ranks
    uint64_t hoped = 0;  // and of those that are away
    uint64_t free = 0;
    std::map<NodeId, std::vector<uint32_t>> free_slots;  // of nodes that take ranks, ascending
    struct User {
      Claim claim;
      uint64_t slots = 0;
    };
    std::map<JobId, User> users;  // on nodes that take ranks
  };
  const Supply& Of(Device device) const;
  std::string WhyNot(const Demand& demand, Device device) const;

  Supply cpu_, cuda_;
  bool any_node_ = false;
  bool any_takes_ranks_ = false;
  std::string unavailable_;  // "1 away, 2 draining"
};

}  // namespace muster::scheduler
