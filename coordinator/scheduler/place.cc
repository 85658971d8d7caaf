#include "coordinator/scheduler/place.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::scheduler {
namespace {

struct Candidate {
  NodeId id;
  std::vector<uint32_t> free;
};

const char* Name(Device device) { return device == DEVICE_CUDA ? "cuda" : "cpu"; }

bool MayBeHopedFor(const NodeView& node) {
  return node.availability == Availability::kTakesRanks || node.availability == Availability::kAway;
}

Device ResolveDevice(Device wanted, const std::vector<NodeView>& nodes) {
  if (wanted != DEVICE_AUTO) return wanted;
  for (const NodeView& node : nodes) {
    if (!MayBeHopedFor(node)) continue;
    for (const Slot& slot : node.slots) {
      if (slot.device() == DEVICE_CUDA) return DEVICE_CUDA;
    }
  }
  return DEVICE_CPU;
}

std::string Slots(uint64_t n) { return absl::StrCat(n, n == 1 ? " slot" : " slots"); }

// "1 away, 2 draining"; empty: all take ranks.
std::string Unavailable(const std::vector<NodeView>& nodes) {
  std::vector<std::string> parts;
  for (const auto& [availability, word] :
       {std::pair(Availability::kAway, "away"), std::pair(Availability::kDraining, "draining"),
        std::pair(Availability::kLost, "lost")}) {
    const auto count = std::count_if(nodes.begin(), nodes.end(),
                                     [&, a = availability](const NodeView& node) { return node.availability == a; });
    if (count > 0) parts.push_back(absl::StrCat(count, " ", word));
  }
  return absl::StrJoin(parts, ", ");
}

// The slots of one device, as a demand for them sees them.
struct Supply {
  uint64_t total = 0;  // of nodes that take ranks
  uint64_t hoped = 0;  // and of those that are away
  uint64_t free = 0;
  std::vector<Candidate> candidates;
  std::set<std::string> users;
};

Supply Count(Device device, const std::vector<NodeView>& nodes) {
  Supply supply;
  for (const NodeView& node : nodes) {
    if (!MayBeHopedFor(node)) continue;
    const bool takes_ranks = node.availability == Availability::kTakesRanks;
    Candidate candidate{node.id, {}};
    for (const Slot& slot : node.slots) {
      if (slot.device() != device) continue;
      ++supply.hoped;
      if (!takes_ranks) continue;
      ++supply.total;
      if (slot.state() == SLOT_STATE_FREE) {
        candidate.free.push_back(slot.index());
      } else if (!slot.job().empty()) {
        supply.users.insert(slot.job());
      }
    }
    supply.free += candidate.free.size();
    if (!candidate.free.empty()) supply.candidates.push_back(std::move(candidate));
  }
  return supply;
}

std::string WhyNot(const Demand& demand, Device device, const Supply& supply, const std::vector<NodeView>& nodes) {
  if (nodes.empty()) return "no node has joined yet";
  const std::string unavailable = Unavailable(nodes);
  const std::string others = unavailable.empty() ? "" : absl::StrCat(" (", unavailable, ")");
  const bool any = std::any_of(nodes.begin(), nodes.end(),
                               [](const NodeView& node) { return node.availability == Availability::kTakesRanks; });
  if (!any) return absl::StrCat("needs ", Slots(demand.ranks), ", but no node takes ranks now", others);
  if (supply.hoped < demand.ranks) {
    return absl::StrCat("needs ", Slots(demand.ranks), " on ", Name(device), ", the nodes have ", supply.hoped,
                        " in all", others);
  }
  return absl::StrCat("needs ", Slots(demand.ranks), ", ", supply.free, " of ", supply.total, " free",
                      supply.users.empty() ? "" : absl::StrCat(" (in use: ", absl::StrJoin(supply.users, ", "), ")"),
                      others);
}

}  // namespace

Decision Place(const Demand& demand, const std::vector<NodeView>& nodes) {
  Decision decision;
  decision.device = ResolveDevice(demand.device, nodes);
  Supply supply = Count(decision.device, nodes);
  decision.fits_when_idle = supply.hoped >= demand.ranks;
  if (supply.free < demand.ranks) {
    decision.reason = WhyNot(demand, decision.device, supply, nodes);
    return decision;
  }

  std::vector<Candidate>& candidates = supply.candidates;
  std::stable_sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const bool a_holds = a.free.size() >= demand.ranks, b_holds = b.free.size() >= demand.ranks;
    if (a_holds != b_holds) return a_holds;
    if (a.free.size() != b.free.size()) return a_holds ? a.free.size() < b.free.size() : a.free.size() > b.free.size();
    return a.id < b.id;
  });
  for (const Candidate& candidate : candidates) {
    for (const uint32_t slot : candidate.free) {
      if (decision.ranks.size() == demand.ranks) return decision;
      decision.ranks.push_back({candidate.id, slot});
    }
  }
  return decision;
}

}  // namespace muster::scheduler
