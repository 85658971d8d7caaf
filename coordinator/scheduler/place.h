// Which slots a gang gets. Pure: snapshots in, a decision or none and its reason out.
#pragma once

#include <cstdint>
#include <optional>
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

struct NodeView {
  NodeId id;
  std::vector<Slot> slots;  // with their state; only FREE ones are given out
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

// All ranks or none. auto: cuda where any node that takes ranks or is away has a cuda slot, else cpu. On as few nodes
// as possible: the fullest node that holds the whole gang, else the emptiest nodes first; ties by node id.
Decision Place(const Demand& demand, const std::vector<NodeView>& nodes);

}  // namespace muster::scheduler
