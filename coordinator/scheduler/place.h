// Which slots a gang gets. Pure: snapshots in, a decision or none and its reason out.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/ids.h"
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
  JobId holder;  // empty: free
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
  // It would fit if everything that runs now had ended and the away nodes were back. Such a job keeps those behind it
  // that want the same device waiting, so that small ones do not starve it; a job that these nodes can never hold does
  // not: they cannot delay it.
  bool fits_when_idle = false;
};

// The slots of all nodes, counted once for the many jobs that ask. A refusal costs the same for any number of nodes.
// Not thread-safe.
class Cluster {
 public:
  explicit Cluster(const std::vector<NodeView>& nodes);

  // auto: cuda where any node that takes ranks or is away has a cuda slot, else cpu.
  Device Resolve(Device wanted) const;

  // All ranks or none, on as few nodes as possible: the fullest node that holds the whole gang, else the emptiest nodes
  // first; ties by node id.
  Decision Place(const Demand& demand) const;

  // The slots of a decision are no longer free.
  void Take(const Decision& decision, const JobId& job);

 private:
  struct Supply {        // of one device
    uint64_t total = 0;  // of nodes that take ranks
    uint64_t hoped = 0;  // and of those that are away
    uint64_t free = 0;
    std::map<NodeId, std::vector<uint32_t>> free_slots;  // of nodes that take ranks, ascending
    std::set<JobId> users;
  };
  const Supply& Of(Device device) const;
  std::string WhyNot(const Demand& demand, Device device) const;

  Supply cpu_, cuda_;
  bool any_node_ = false;
  bool any_takes_ranks_ = false;
  std::string unavailable_;  // "1 away, 2 draining"
};

}  // namespace muster::scheduler
