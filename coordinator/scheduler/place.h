// Placement: which slots a gang gets. Pure: snapshots in, a decision with its reason out.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/ids.h"
#include "coordinator/scheduler/queue_order.h"
#include "proto/job.pb.h"

namespace muster::scheduler {

enum class Availability {
  kTakesRanks,  // live and not draining
  kAway,        // expected to return: gets no ranks now, but a job may wait for its slots
  kNotReady,    // likewise: its worker checks the machine, or found a problem with it
  kDraining,
  kLost,
};

struct SlotView {
  uint32_t index = 0;
  Device device = DEVICE_CPU;
  Claim holder;               // empty: the slot is free
  uint64_t memory_bytes = 0;  // 0: unknown, assumed to be enough
  bool stuck = false;         // a process that does not end holds it; a job may wait for it, as for an away node's
};

struct NodeView {
  NodeId id;
  std::vector<SlotView> slots;
  Availability availability = Availability::kTakesRanks;
  std::string problem{};  // of a node that is not ready, for users; empty: it is still being checked
};

// Kueue's words: the nodes of a topology domain are near each other; those of one level have the same label.
struct TopologyLevel {
  std::string key;                        // of the label: "rack"
  std::map<NodeId, std::string> domains;  // its values; a node without the label is in no domain
};

// Nodes that are reserved for others: a job that starts later than `from` and earlier than `until`, both from now,
// could run on them while they are.
struct Closed {
  absl::Duration from, until;
  std::shared_ptr<const std::set<NodeId>> nodes;  // shared by all demands: a cluster may have thousands

  bool At(absl::Duration time) const { return from < time && time < until; }
  bool Now() const { return At(absl::ZeroDuration()); }
};

struct Demand {
  uint32_t ranks = 1;
  Device device = DEVICE_AUTO;
  uint64_t slot_bytes = 0;   // least memory of a slot
  uint64_t below_bytes = 0;  // 0: any; else only slots that are known to have less memory, and those of `or_on`
  uint32_t least = 0;        // least number of ranks, if there are not enough slots for all; 0: all or none
  // The number of ranks is a multiple of it, as `ranks` and `least` are: stages of a pipeline times `context` times
  // `together`.
  uint32_t multiple = 1;
  // For users, where no slot that it could get has so much: what the smallest of its configurations that were tried
  // needs of a slot. Larger slots than `slot_bytes` may suit another one, so they are tried. 0: none was.
  uint64_t smallest_bytes = 0;
  uint32_t together = 1;           // consecutive ranks that must be on one node: those that compute each unit together
  uint32_t context = 1;            // so many of these groups share sequences, and are best on one node
  std::set<NodeId> avoid{};        // nodes that it never gets
  std::vector<Closed> closed{};    // nodes that it does not get at times
  std::string reservation{};       // the one that it runs in; `avoid` has all nodes outside of it
  std::string where{};             // why it avoids them, for users: ", only on nodes with rack=a"
  std::set<NodeId> last_choice{};  // nodes that it gets when there are not enough slots elsewhere
  // If not empty, only slots of these nodes, and those that `below_bytes` allows.
  std::set<NodeId> or_on{};
  bool spread = false;  // over as many nodes as possible, instead of as few
  // All ranks in one domain. Nodes outside of all domains are to be avoided, too.
  std::optional<TopologyLevel> required{};
  // In one domain, if one has enough free slots, else in few. Narrowest level first.
  std::vector<TopologyLevel> preferred{};

  uint32_t needed() const { return least == 0 ? ranks : std::min(least, ranks); }
  // Whether it does not get the node now.
  bool Avoids(const NodeId& node) const;
  bool AvoidsAny() const;
  std::set<NodeId> Avoided() const;
  // The demand of the same job at that time from now.
  Demand In(absl::Duration time) const;
};

// The slots that one job leaves to others: of those that suit it, so many.
struct Spare {
  Demand of;
  uint64_t slots = 0;
  // If its ranks must be together, so many on each node; together they are all.
  std::map<NodeId, uint64_t> on_node;
};

struct RankSlot {
  NodeId node;
  uint32_t slot = 0;
  uint64_t memory_bytes = 0;
};

struct Decision {
  std::vector<RankSlot> ranks;         // by rank; empty: it cannot start now
  Device device = DEVICE_UNSPECIFIED;  // resolved, never auto
  std::string reason;                  // why it cannot start, for users; empty if it can
  // It would fit if all running jobs had ended, away nodes were back, and no node was reserved for others.
  bool fits_when_idle = false;
};

// The slots of all nodes, indexed once for many queries. A refusal costs the same for any number of nodes.
// Not thread-safe.
class Cluster {
 public:
  explicit Cluster(const std::vector<NodeView>& nodes);

  // auto: cuda if any node that takes ranks or is away has a cuda slot, else cpu.
  Device Resolve(Device requested) const;

  // Places all ranks; if that is impossible, as many as there are slots for, but at least demand.needed(), and a
  // multiple of demand.multiple; else none. Each node gets a multiple of demand.together. Which nodes: share_out.h; of
  // the domains of demand.required with room for all ranks the fullest, else the emptiest. The ranks on a node are
  // consecutive, on ascending slots. `kept`: a former decision, which is made again if all of its slots are still free
  // and suit the demand. `spares`: no other slots that suit the job of each; if that is why there are too few, the
  // decision has no reason.
  Decision Place(const Demand& demand, const Decision* kept = nullptr,
                 const std::vector<const Spare*>& spares = {}) const;
  // How soon it would fit if all running jobs had ended and away nodes were back: as soon as enough of the nodes that
  // are reserved for others are free of that. Infinite: never.
  absl::Duration IdleFrom(const Demand& demand) const;
  bool FitsWhenIdle(const Demand& demand) const { return IdleFrom(demand) < absl::InfiniteDuration(); }
  // Of a job that has to wait for slots: its demand in the one domain, of those that could hold it, where it starts
  // soonest; where that is not known, where most slots are left that no later job holds. While later jobs respect what
  // is reserved there, either figure only gets better, so it does not matter that another domain may be chosen in the
  // next pass. Without demand.required: the demand. REQUIRES: FitsWhenIdle.
  Demand InOneDomain(const Claim& claim, const Demand& demand) const;

  // Marks the slots of a decision as used.
  void Take(const Decision& decision, const Claim& holder);

  // Free slots that suit a demand with a resolved device, on nodes that take ranks; with demand.required those of the
  // emptiest domain. The functions below take only demands without that.
  uint64_t FreeSlots(const Demand& demand) const { return Count(demand).free; }
  // Those of nodes that take ranks and are held by jobs that come after `claim` in queue order, and may still hold them
  // after that time.
  std::map<NodeId, uint64_t> SlotsHeldAfter(const Claim& claim, absl::Duration time, const Demand& demand) const;
  // Those that are held by jobs, of any precedence, that may still hold them after that time.
  std::map<NodeId, uint64_t> SlotsHeldBeyond(absl::Duration time, const Demand& demand) const;
  // When the demand, with a resolved device, can be placed at the latest if every job with a known end ends then and no
  // other job ever does. Infinite: never so.
  absl::Duration StartsIn(const Demand& demand) const;
  // The free slots that others may use so that the demand, with a resolved device, can be placed as soon as all slots
  // but those and the `held` ones are free. Where ranks must be together, a node with one slot less has one group less,
  // so others get what makes no whole group, and then groups of which they can use most.
  Spare SpareOf(const Demand& demand, const std::map<NodeId, uint64_t>& held) const;

  // The demand, only on nodes without a slot that suits `other`.
  Demand Apart(const Demand& demand, const Demand& other) const;

  // Whether a slot of this node with this much memory suits the demand now.
  static bool Suits(const NodeId& node, uint64_t memory_bytes, const Demand& demand);

 private:
  struct Counts {
    uint64_t total = 0;  // slots of nodes that take ranks
    uint64_t hoped = 0;  // the same plus away nodes
    uint64_t free = 0;
  };
  struct FreeSlot {
    uint32_t index = 0;
    uint64_t memory_bytes = 0;
  };
  struct Supply {  // slots of one device
    Counts all;
    std::map<uint64_t, Counts> by_memory;
    std::map<NodeId, std::map<uint64_t, Counts>> by_node;  // likewise
    std::map<NodeId, std::vector<FreeSlot>> free_slots;    // on nodes that take ranks, ascending
    struct User {
      Claim claim;
      std::map<NodeId, std::map<uint64_t, uint64_t>> slots;  // slot count by node and memory
    };
    std::map<JobId, User> users;  // jobs on nodes that take ranks
  };
  const Supply& Of(Device device) const;
  template <typename Matches>  // of a Claim
  std::map<NodeId, uint64_t> SlotsHeldBy(const Demand& demand, const Matches& matches) const;
  // How many ranks of the demand could be placed if all slots but the held ones were free.
  uint64_t RoomBeside(const Demand& demand, const std::map<NodeId, uint64_t>& held) const;
  bool StillFree(const Decision& kept, const Demand& demand) const;
  static bool IsWithin(const Spare& spare, const std::vector<RankSlot>& ranks);
  // If memory matters, the cost grows with the number of different slot sizes; if ranks must be together, or nodes
  // are avoided, with that of nodes. Of a node only as many slots count as groups of ranks can have. Where all ranks
  // must be in one domain, each figure is that of the domain where it is largest.
  Counts Count(const Demand& demand) const;
  uint64_t Largest(Device device) const;
  std::string WhyNot(const Demand& demand, Device device) const;

  Supply cpu_, cuda_;
  bool any_node_ = false;
  bool any_takes_ranks_ = false;
  std::string unavailable_;  // "1 node is away, 2 nodes are draining"
};

}  // namespace muster::scheduler
