#include "coordinator/scheduler/place.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::scheduler {
namespace {

const char* Name(Device device) { return device == DEVICE_CUDA ? "cuda" : "cpu"; }

std::string Slots(uint64_t n) { return absl::StrCat(n, n == 1 ? " slot" : " slots"); }

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

// " (in use: a, b, c and 2 more jobs)".
std::string InUse(const std::set<JobId>& users) {
  constexpr size_t kNamed = 3;
  if (users.empty()) return "";
  std::vector<std::string> named;
  for (const JobId& user : users) {
    if (named.size() == kNamed) break;
    named.push_back(user.value());
  }
  const size_t more = users.size() - named.size();
  return absl::StrCat(" (in use: ", absl::StrJoin(named, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, more == 1 ? " more job" : " more jobs"), ")");
}

}  // namespace

Cluster::Cluster(const std::vector<NodeView>& nodes) : any_node_(!nodes.empty()), unavailable_(Unavailable(nodes)) {
  for (const NodeView& node : nodes) {
    const bool takes_ranks = node.availability == Availability::kTakesRanks;
    if (!takes_ranks && node.availability != Availability::kAway) continue;
    any_takes_ranks_ |= takes_ranks;
    for (const SlotView& slot : node.slots) {
      Supply& supply = slot.device == DEVICE_CUDA ? cuda_ : cpu_;
      ++supply.hoped;
      if (!takes_ranks) continue;
      ++supply.total;
      if (slot.holder.empty()) {
        ++supply.free;
        supply.free_slots[node.id].push_back(slot.index);
      } else {
        supply.users.insert(slot.holder);
      }
    }
  }
}

const Cluster::Supply& Cluster::Of(Device device) const { return device == DEVICE_CUDA ? cuda_ : cpu_; }

Device Cluster::Resolve(Device wanted) const {
  if (wanted != DEVICE_AUTO) return wanted;
  return cuda_.hoped > 0 ? DEVICE_CUDA : DEVICE_CPU;
}

std::string Cluster::WhyNot(const Demand& demand, Device device) const {
  if (!any_node_) return "no node has joined yet";
  const Supply& supply = Of(device);
  const std::string needs = absl::StrCat("needs ", Slots(demand.ranks));
  const std::string others = unavailable_.empty() ? "" : absl::StrCat(" (", unavailable_, ")");
  if (!any_takes_ranks_) return absl::StrCat(needs, ", but no node takes ranks now", others);
  if (supply.hoped < demand.ranks) {
    return absl::StrCat(needs, " on ", Name(device), ", the nodes have ", supply.hoped, " in all", others);
  }
  return absl::StrCat(needs, ", ", supply.free, " of ", supply.total, " free", InUse(supply.users), others);
}

Decision Cluster::Place(const Demand& demand) const {
  Decision decision;
  decision.device = Resolve(demand.device);
  const Supply& supply = Of(decision.device);
  decision.fits_when_idle = supply.hoped >= demand.ranks;
  if (supply.free < demand.ranks) {
    decision.reason = WhyNot(demand, decision.device);
    return decision;
  }
  std::vector<const std::pair<const NodeId, std::vector<uint32_t>>*> candidates;
  for (const auto& candidate : supply.free_slots) candidates.push_back(&candidate);
  std::stable_sort(candidates.begin(), candidates.end(), [&](const auto* a, const auto* b) {
    const size_t a_free = a->second.size(), b_free = b->second.size();
    const bool a_holds = a_free >= demand.ranks, b_holds = b_free >= demand.ranks;
    if (a_holds != b_holds) return a_holds;
    return a_holds ? a_free < b_free : a_free > b_free;  // equal ones stay in the order of their ids
  });
  for (const auto* candidate : candidates) {
    for (const uint32_t slot : candidate->second) {
      if (decision.ranks.size() == demand.ranks) return decision;
      decision.ranks.push_back({candidate->first, slot});
    }
  }
  return decision;
}

void Cluster::Take(const Decision& decision, const JobId& job) {
  Supply& supply = decision.device == DEVICE_CUDA ? cuda_ : cpu_;
  for (const RankSlot& rank : decision.ranks) {
    const auto node = supply.free_slots.find(rank.node);
    supply.free -= std::erase(node->second, rank.slot);
    if (node->second.empty()) supply.free_slots.erase(node);
  }
  supply.users.insert(job);
}

}  // namespace muster::scheduler
