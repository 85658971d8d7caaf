#include "coordinator/scheduler/share_out.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::scheduler {
namespace {

using Free = std::map<NodeId, uint64_t>;

// The smallest entry that holds `left`, else the largest.
template <typename ByFree>
auto BestFit(ByFree& by_free, uint64_t left) {
  const auto holds = by_free.lower_bound(left);
  return holds == by_free.end() ? std::prev(holds) : holds;
}

class Sharing {
 public:
  // Each node gets a multiple of `group` ranks.
  Sharing(const Demand& demand, uint64_t group) : demand_(demand), group_(group) {}

  uint64_t RanksOn(uint64_t free) const { return free - free % group_; }
  uint64_t Sum(const Free& nodes) const {
    return std::accumulate(nodes.begin(), nodes.end(), uint64_t{0},
                           [this](uint64_t sum, const auto& node) { return sum + RanksOn(node.second); });
  }

  // Up to `left` ranks; `levels`: how many of the demand's preferred ones divide these nodes.
  void Take(const Free& nodes, size_t levels, uint64_t& left) {
    if (levels > 0) return TakeDomains(nodes, levels, left);
    demand_.spread ? Spread(nodes, left) : Pack(nodes, left);
  }
  // By value of the level's label. A node without it is alone, and comes after all values.
  static std::map<std::string, Free> Domains(const Free& nodes, const TopologyLevel& level) {
    std::map<std::string, Free> domains;
    for (const auto& [node, free] : nodes) {
      const auto found = level.domains.find(node);
      domains[found == level.domains.end() ? absl::StrCat("\x7f", node.value()) : found->second][node] = free;
    }
    return domains;
  }
  std::vector<NodeShare> shares;

 private:
  void TakeDomains(const Free& nodes, size_t levels, uint64_t& left) {
    const std::map<std::string, Free> domains = Domains(nodes, demand_.preferred[levels - 1]);
    std::map<uint64_t, std::set<std::string>> by_free;
    for (const auto& [name, its] : domains) by_free[Sum(its)].insert(name);
    while (left > 0 && !by_free.empty()) {
      const auto chosen = BestFit(by_free, left);
      const std::string name = *chosen->second.begin();
      Take(domains.at(name), levels - 1, left);
      chosen->second.erase(name);
      if (chosen->second.empty()) by_free.erase(chosen);
    }
  }

  void Pack(const Free& nodes, uint64_t& left) {
    std::map<uint64_t, std::set<std::pair<uint64_t, NodeId>>> by_free;  // by how many ranks each can take
    for (const auto& [node, free] : nodes) {
      if (RanksOn(free) > 0) by_free[RanksOn(free)].emplace(free, node);
    }
    while (left > 0 && !by_free.empty()) {
      const auto chosen = BestFit(by_free, left);
      const NodeId node = chosen->second.begin()->second;
      Add(node, std::min(left, chosen->first), left);
      chosen->second.erase(chosen->second.begin());
      if (chosen->second.empty()) by_free.erase(chosen);
    }
  }

  void Spread(const Free& nodes, uint64_t& left) {
    std::vector<std::pair<uint64_t, NodeId>> emptiest_first;
    for (const auto& [node, free] : nodes) emptiest_first.emplace_back(free, node);
    std::stable_sort(emptiest_first.begin(), emptiest_first.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::map<NodeId, uint64_t> taken;
    uint64_t to_give = left;
    for (bool any = true; to_give > 0 && any;) {  // one group to each node, in rounds
      any = false;
      for (const auto& [free, node] : emptiest_first) {
        const uint64_t group = std::min(to_give, group_);
        if (group == 0 || taken[node] + group > free) continue;
        taken[node] += group, to_give -= group, any = true;
      }
    }
    for (const auto& [free, node] : emptiest_first) {
      if (taken[node] > 0) Add(node, taken[node], left);
    }
  }

  void Add(const NodeId& node, uint64_t ranks, uint64_t& left) {
    shares.push_back({node, ranks});
    left -= ranks;
  }

  const Demand& demand_;
  const uint64_t group_;
};

// On each node a multiple of `group` ranks. Empty: the nodes cannot take all ranks so.
std::vector<NodeShare> ShareOutBy(uint64_t group, const Free& first_choice, const Free& last_choice, uint64_t ranks,
                                  const Demand& demand) {
  Sharing sharing(demand, group);
  if (sharing.Sum(first_choice) + sharing.Sum(last_choice) < ranks) return {};
  Free first = first_choice;
  size_t levels = demand.preferred.size();
  for (size_t level = 0; level < levels; ++level) {
    std::map<std::string, Free> domains = Sharing::Domains(first, demand.preferred[level]);
    std::map<std::string, uint64_t> sums;
    for (const auto& [name, nodes] : domains) sums[name] = sharing.Sum(nodes);
    const std::string* const domain = BestDomain(sums, ranks, ranks);
    if (domain == nullptr) continue;
    first = std::move(domains.at(*domain));
    levels = level;
  }
  uint64_t left = ranks;
  sharing.Take(first, levels, left);
  sharing.Take(last_choice, levels, left);
  return std::move(sharing.shares);
}

// What comes before whole stages, each figure by itself: few nodes of the last choice, and few domains of each level.
std::vector<size_t> CostsOf(const std::vector<NodeShare>& shares, const Demand& demand) {
  Free used;
  size_t last = 0;
  for (const NodeShare& share : shares) used[share.node] = share.ranks, last += demand.last_choice.contains(share.node);
  std::vector<size_t> costs = {last};
  for (const TopologyLevel& level : demand.preferred) costs.push_back(Sharing::Domains(used, level).size());
  return costs;
}

}  // namespace

const std::string* BestDomain(const std::map<std::string, uint64_t>& free, uint64_t needed, uint64_t wanted) {
  const std::string* best = nullptr;
  uint64_t of_best = 0;
  for (const auto& [name, slots] : free) {
    if (slots < needed) continue;
    const bool better = best == nullptr || (slots >= wanted ? of_best < wanted || slots < of_best : slots > of_best);
    if (better) best = &name, of_best = slots;
  }
  return best;
}

std::vector<NodeShare> ShareOut(const std::map<NodeId, uint64_t>& free, uint64_t ranks, const Demand& demand) {
  Free first, last;
  for (const auto& [node, slots] : free) (demand.last_choice.contains(node) ? last : first)[node] = slots;
  std::vector<NodeShare> shares = ShareOutBy(demand.together, first, last, ranks, demand);
  if (demand.spread) return shares;
  const std::vector<size_t> costs = CostsOf(shares, demand);
  const uint64_t sharing = uint64_t{demand.together} * demand.context, stages = demand.multiple / sharing;
  for (const uint64_t group : {stages > 1 ? ranks / stages : 0, demand.context > 1 ? sharing : 0}) {
    if (group == 0) continue;
    std::vector<NodeShare> whole = ShareOutBy(group, first, last, ranks, demand);
    const std::vector<size_t> its = CostsOf(whole, demand);
    const bool costs_more = !std::equal(its.begin(), its.end(), costs.begin(), std::less_equal<>());
    if (!whole.empty() && !costs_more) return whole;
  }
  return shares;
}

}  // namespace muster::scheduler
