#include "coordinator/scheduler/place.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster::scheduler {
namespace {

const char* Name(Device device) { return device == DEVICE_CUDA ? "cuda" : "cpu"; }

std::string Counted(uint64_t n) { return absl::StrCat(n, n == 1 ? " slot" : " slots"); }

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

// " (in use: a, b, c and 2 more jobs)", of a map from job ids.
template <typename Users>
std::string InUse(const Users& users) {
  constexpr size_t kNamed = 3;
  if (users.empty()) return "";
  std::vector<std::string> named;
  for (const auto& [user, slots] : users) {
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
      if (slot.holder.job.empty()) {
        ++supply.free;
        supply.free_slots[node.id].push_back(slot.index);
      } else {
        Supply::User& user = supply.users[slot.holder.job];
        user.claim = slot.holder;
        ++user.slots;
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
  const std::string needs = absl::StrCat("needs ", Counted(demand.ranks));
  const std::string others = unavailable_.empty() ? "" : absl::StrCat(" (", unavailable_, ")");
  if (!any_takes_ranks_) return absl::StrCat(needs, ", but no node takes ranks now", others);
  if (supply.hoped < demand.ranks) {
    // What the user can do about it: fewer ranks, or the other device.
    const Supply& other = Of(device == DEVICE_CUDA ? DEVICE_CPU : DEVICE_CUDA);
    const std::string instead = other.hoped < demand.ranks ? ""
                                                           : absl::StrCat(", or ", other.hoped, " with device ",
                                                                          device == DEVICE_CUDA ? "cpu" : "cuda");
    const std::string have = supply.hoped == 0 ? "none" : absl::StrCat(supply.hoped, " in all, ", supply.free, " free");
    return absl::StrCat(needs, " on ", Name(device), ", the nodes have ", have, "; at most ", supply.hoped,
                        supply.hoped == 1 ? " rank" : " ranks", " would fit", instead, others);
  }
  return absl::StrCat(needs, ", ", supply.free, " of ", supply.total, " free", InUse(supply.users), others);
}

bool Cluster::FitsWhenIdle(const Demand& demand) const { return Of(Resolve(demand.device)).hoped >= demand.ranks; }

Decision Cluster::Place(const Demand& demand) const {
  Decision decision;
  decision.device = Resolve(demand.device);
  decision.fits_when_idle = FitsWhenIdle(demand);
  const Supply& supply = Of(decision.device);
  if (supply.free < demand.ranks) {
    decision.reason = WhyNot(demand, decision.device);
    return decision;
  }
  // Nodes by their number of free slots, then id.
  std::map<size_t, std::set<NodeId>> by_free;
  for (const auto& [node, slots] : supply.free_slots) by_free[slots.size()].insert(node);
  while (decision.ranks.size() < demand.ranks) {
    const size_t left = demand.ranks - decision.ranks.size();
    auto chosen = by_free.lower_bound(left);
    if (chosen == by_free.end()) --chosen;  // none holds the rest: the emptiest
    const NodeId node = *chosen->second.begin();
    const std::vector<uint32_t>& slots = supply.free_slots.at(node);
    for (size_t i = 0; i < std::min(left, slots.size()); ++i) decision.ranks.push_back({node, slots[i]});
    chosen->second.erase(node);
    if (chosen->second.empty()) by_free.erase(chosen);
  }
  return decision;
}

void Cluster::Take(const Decision& decision, const Claim& holder) {
  Supply& supply = decision.device == DEVICE_CUDA ? cuda_ : cpu_;
  for (const RankSlot& rank : decision.ranks) {
    const auto node = supply.free_slots.find(rank.node);
    supply.free -= std::erase(node->second, rank.slot);
    if (node->second.empty()) supply.free_slots.erase(node);
  }
  Supply::User& user = supply.users[holder.job];
  user.claim = holder;
  user.slots += decision.ranks.size();
}

uint64_t Cluster::SlotsHeldBehind(const Claim& claim, Device device) const {
  uint64_t slots = 0;
  for (const auto& [job, user] : Of(device).users) slots += Before(claim, user.claim) ? user.slots : 0;
  return slots;
}

}  // namespace muster::scheduler
