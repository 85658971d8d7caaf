#include "coordinator/scheduler/place.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/bytes.h"
#include "common/counted.h"
#include "coordinator/scheduler/share_out.h"

namespace muster::scheduler {
namespace {

const char* Name(Device device) { return device == DEVICE_CUDA ? "cuda" : "cpu"; }

std::string SlotCount(uint64_t n) { return Counted(n, "slot", "slots"); }

// " of at least 61.2 GiB"
std::string OfMemory(const Demand& demand) {
  if (demand.slot_bytes == 0) return "";
  return absl::StrCat(" of at least ", FormatBytes(demand.slot_bytes));
}

std::string OfSmallest(const Demand& demand) {
  if (demand.smallest_bytes == 0) return OfMemory(demand);
  return absl::StrCat(" of ", FormatBytes(demand.smallest_bytes), " for the smallest configuration that was tried");
}

std::string Unavailable(const std::vector<NodeView>& nodes) {
  std::vector<std::string> parts;
  for (const auto& [availability, word] :
       {std::pair(Availability::kAway, "away"), std::pair(Availability::kNotReady, "not ready"),
        std::pair(Availability::kDraining, "draining"), std::pair(Availability::kLost, "lost")}) {
    const auto count = std::count_if(nodes.begin(), nodes.end(),
                                     [&, a = availability](const NodeView& node) { return node.availability == a; });
    if (count == 0) continue;
    parts.push_back(absl::StrCat(Counted(static_cast<uint64_t>(count), "node is ", "nodes are "), word));
    if (availability != Availability::kNotReady) continue;
    // One of them is enough to know what to look for; `muster nodes` has the others.
    const auto faulty = std::find_if(nodes.begin(), nodes.end(), [](const NodeView& node) {
      return node.availability == Availability::kNotReady && !node.problem.empty();
    });
    if (faulty != nodes.end()) absl::StrAppend(&parts.back(), " (", faulty->id.value(), ": ", faulty->problem, ")");
  }
  int64_t stuck = 0;
  for (const NodeView& node : nodes) {
    stuck += std::count_if(node.slots.begin(), node.slots.end(), [](const SlotView& slot) { return slot.stuck; });
  }
  if (stuck > 0)
    parts.push_back(absl::StrCat(Counted(static_cast<uint64_t>(stuck), "slot is ", "slots are "), "stuck"));
  return absl::StrJoin(parts, ", ");
}

// " (in use: a, b, c and 2 more jobs)", from a map of job ids.
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
                      more == 0 ? "" : absl::StrCat(" and ", Counted(more, "more job", "more jobs")), ")");
}

}  // namespace

bool Demand::Avoids(const NodeId& node) const {
  if (avoid.contains(node)) return true;
  return std::any_of(closed.begin(), closed.end(),
                     [&](const Closed& window) { return window.Now() && window.nodes->contains(node); });
}

bool Demand::AvoidsAny() const {
  return !avoid.empty() || std::any_of(closed.begin(), closed.end(),
                                       [](const Closed& window) { return window.Now() && !window.nodes->empty(); });
}

std::set<NodeId> Demand::Avoided() const {
  std::set<NodeId> nodes = avoid;
  for (const Closed& window : closed) {
    if (window.Now()) nodes.insert(window.nodes->begin(), window.nodes->end());
  }
  return nodes;
}

Demand Demand::In(absl::Duration time) const {
  Demand then = *this;
  for (Closed& window : then.closed) window.from -= time, window.until -= time;
  return then;
}

Cluster::Cluster(const std::vector<NodeView>& nodes) : any_node_(!nodes.empty()), unavailable_(Unavailable(nodes)) {
  for (const NodeView& node : nodes) {
    const bool takes_ranks = node.availability == Availability::kTakesRanks;
    const bool may_take_them_again =
        node.availability == Availability::kAway || node.availability == Availability::kNotReady;
    if (!takes_ranks && !may_take_them_again) continue;
    any_takes_ranks_ |= takes_ranks;
    for (const SlotView& slot : node.slots) {
      Supply& supply = slot.device == DEVICE_CUDA ? cuda_ : cpu_;
      const bool usable = takes_ranks && !slot.stuck;
      const bool is_free = slot.holder.job.empty();
      for (Counts* counts :
           {&supply.all, &supply.by_memory[slot.memory_bytes], &supply.by_node[node.id][slot.memory_bytes]}) {
        ++counts->hoped;
        counts->total += usable;
        counts->free += usable && is_free;
      }
      if (!usable) continue;
      if (is_free) {
        supply.free_slots[node.id].push_back({slot.index, slot.memory_bytes});
      } else {
        Supply::User& user = supply.users[slot.holder.job];
        user.claim = slot.holder;
        ++user.slots[node.id][slot.memory_bytes];
      }
    }
  }
}

const Cluster::Supply& Cluster::Of(Device device) const { return device == DEVICE_CUDA ? cuda_ : cpu_; }

bool Cluster::Suits(const NodeId& node, uint64_t memory_bytes, const Demand& demand) {
  if (demand.Avoids(node)) return false;
  const bool limited = demand.below_bytes > 0 || !demand.or_on.empty();
  const bool below = memory_bytes > 0 && memory_bytes < demand.below_bytes;
  if (limited && !below && !demand.or_on.contains(node)) return false;
  return memory_bytes == 0 || memory_bytes >= demand.slot_bytes;
}

Cluster::Counts Cluster::Count(const Demand& demand) const {
  const Supply& supply = Of(Resolve(demand.device));
  Counts sum;
  const auto add = [](const Counts& counts, Counts& to) {
    to.total += counts.total, to.hoped += counts.hoped, to.free += counts.free;
  };
  const bool by_node = demand.together > 1 || !demand.avoid.empty() || !demand.closed.empty() || !demand.or_on.empty();
  if (by_node || demand.required.has_value()) {
    std::map<std::string, Counts> domains;
    for (const auto& [node, by_memory] : supply.by_node) {
      Counts* to = &sum;
      if (demand.required.has_value()) {
        const auto domain = demand.required->domains.find(node);
        if (domain == demand.required->domains.end()) continue;
        to = &domains[domain->second];
      }
      Counts of;
      for (const auto& [memory, counts] : by_memory) {
        if (Suits(node, memory, demand)) add(counts, of);
      }
      const auto grouped = [&](uint64_t slots) { return slots - slots % demand.together; };
      add({grouped(of.total), grouped(of.hoped), grouped(of.free)}, *to);
    }
    for (const auto& [name, counts] : domains) {
      sum.total = std::max(sum.total, counts.total);
      sum.hoped = std::max(sum.hoped, counts.hoped);
      sum.free = std::max(sum.free, counts.free);
    }
    return sum;
  }
  if (demand.slot_bytes == 0 && demand.below_bytes == 0) return supply.all;
  for (const auto& [memory, counts] : supply.by_memory) {
    if (Suits(NodeId(), memory, demand)) add(counts, sum);
  }
  return sum;
}

uint64_t Cluster::Largest(Device device) const {
  const Supply& supply = Of(device);
  return supply.by_memory.empty() ? 0 : supply.by_memory.rbegin()->first;
}

Device Cluster::Resolve(Device requested) const {
  if (requested != DEVICE_AUTO) return requested;
  return cuda_.all.hoped > 0 ? DEVICE_CUDA : DEVICE_CPU;
}

std::string Cluster::WhyNot(const Demand& demand, Device device) const {
  if (!any_node_) return "no node has joined yet";
  const Counts supply = Count(demand);
  const uint32_t needed = demand.needed();
  const auto needs_of = [&](const std::string& memory) {
    return absl::StrCat(
        "needs ", needed < demand.ranks ? absl::StrCat(needed, " to ") : "", SlotCount(demand.ranks), memory,
        demand.together > 1 ? absl::StrCat(", each ", demand.together, " on one node (parallel.tensor)") : "",
        demand.required.has_value() ? absl::StrCat(", all on nodes with the same ", demand.required->key) : "");
  };
  const std::string needs = needs_of(OfMemory(demand));
  std::string others = unavailable_.empty() ? "" : absl::StrCat(" (", unavailable_, ")");
  others += demand.where;
  if (!any_takes_ranks_) return absl::StrCat(needs, ", but no node accepts ranks now", others);
  if (supply.hoped < needed && !FitsWhenIdle(demand)) {
    constexpr char kNever[] = "can never start on these nodes: ";
    if (demand.required.has_value()) {
      return absl::StrCat(kNever, needs, ", the largest ", demand.required->key, " has ", supply.hoped, others);
    }
    if (demand.together == 1 && Of(device).all.hoped >= needed) {  // the slots exist, but have too little memory
      Demand smallest = demand;
      smallest.slot_bytes = std::max(demand.slot_bytes, demand.smallest_bytes);
      const uint64_t have = Count(smallest).hoped;
      return absl::StrCat(kNever, needs_of(OfSmallest(demand)), ", the nodes have ",
                          have == 0 ? "none" : absl::StrCat(have), ", the largest has ", FormatBytes(Largest(device)),
                          others);
    }
    // What the user can change: fewer ranks, or the other device.
    const Device other = device == DEVICE_CUDA ? DEVICE_CPU : DEVICE_CUDA;
    const uint64_t there = Of(other).all.hoped;
    const std::string instead = there < needed
                                    ? ""
                                    : absl::StrCat(" (the nodes have ", SlotCount(there), " on ", Name(other),
                                                   ": set resources.device: ", Name(other), ")");
    const std::string have = supply.hoped > 0
                                 ? absl::StrCat(", the nodes have ", supply.hoped, " in all, ", supply.free,
                                                " free; at most ", Counted(supply.hoped, "rank", "ranks"), " would fit")
                             : Of(device).all.hoped > 0 ? ", the nodes have none"
                             : device == DEVICE_CUDA    ? "; no node has a GPU"
                                                        : "; no node has slots on cpu";
    return absl::StrCat(kNever, needs, " on ", Name(device), have, instead, others);
  }
  if (demand.required.has_value()) {
    return absl::StrCat(needs, ", at most ", supply.free, " free on one", InUse(Of(device).users), others);
  }
  return absl::StrCat(needs, ", ", supply.free, " of ", supply.total, " free", InUse(Of(device).users), others);
}

absl::Duration Cluster::IdleFrom(const Demand& demand) const {
  if (Count(demand).hoped >= demand.needed()) return absl::ZeroDuration();
  std::set<absl::Duration> openings;
  for (const Closed& window : demand.closed) {
    if (window.until > absl::ZeroDuration()) openings.insert(window.until);
  }
  const auto first = std::find_if(openings.begin(), openings.end(),
                                  [&](absl::Duration time) { return Count(demand.In(time)).hoped >= demand.needed(); });
  return first == openings.end() ? absl::InfiniteDuration() : *first;
}

Demand Cluster::Apart(const Demand& demand, const Demand& other) const {
  Demand apart = demand;
  for (const auto& [node, by_memory] : Of(Resolve(demand.device)).by_node) {
    const bool suits = std::any_of(by_memory.begin(), by_memory.end(),
                                   [&, &id = node](const auto& slots) { return Suits(id, slots.first, other); });
    if (suits) apart.avoid.insert(node);
  }
  return apart;
}

bool Cluster::StillFree(const Decision& kept, const Demand& demand) const {
  if (kept.device != Resolve(demand.device)) return false;
  if (kept.ranks.size() < demand.needed() || kept.ranks.size() > demand.ranks) return false;
  if (kept.ranks.size() % demand.multiple != 0) return false;
  if (demand.required.has_value()) {
    std::set<std::string> domains;
    for (const RankSlot& rank : kept.ranks) {
      const auto domain = demand.required->domains.find(rank.node);
      if (domain == demand.required->domains.end()) return false;
      domains.insert(domain->second);
    }
    if (domains.size() > 1) return false;
  }
  const auto& free_slots = Of(kept.device).free_slots;
  return std::all_of(kept.ranks.begin(), kept.ranks.end(), [&](const RankSlot& rank) {
    const auto node = free_slots.find(rank.node);
    if (node == free_slots.end() || !Suits(rank.node, rank.memory_bytes, demand)) return false;
    return std::any_of(node->second.begin(), node->second.end(), [&](const FreeSlot& slot) {
      return slot.index == rank.slot && slot.memory_bytes == rank.memory_bytes;
    });
  });
}

bool Cluster::IsWithin(const Spare& spare, const std::vector<RankSlot>& ranks) {
  std::map<NodeId, uint64_t> used;
  for (const RankSlot& rank : ranks) used[rank.node] += Suits(rank.node, rank.memory_bytes, spare.of);
  uint64_t all = 0;
  for (const auto& [node, slots] : used) {
    const auto own = spare.on_node.find(node);
    if (spare.of.together > 1 && slots > (own == spare.on_node.end() ? 0 : own->second)) return false;
    all += slots;
  }
  return all <= spare.slots;
}

Decision Cluster::Place(const Demand& demand, const Decision* kept, const std::vector<const Spare*>& spares) const {
  Decision decision;
  decision.device = Resolve(demand.device);
  decision.fits_when_idle = FitsWhenIdle(demand);
  if (Count(demand).free < demand.needed()) {
    decision.reason = WhyNot(demand, decision.device);
    return decision;
  }
  const auto is_within = [&](const Spare* spare) { return IsWithin(*spare, kept->ranks); };
  if (kept != nullptr && StillFree(*kept, demand) && std::all_of(spares.begin(), spares.end(), is_within)) {
    decision.ranks = kept->ranks;
    return decision;
  }
  std::map<NodeId, std::vector<FreeSlot>> suitable;
  std::map<NodeId, uint64_t> counts;
  std::map<std::string, uint64_t> of_domains;
  uint64_t free = 0;
  for (const auto& [node, slots] : Of(decision.device).free_slots) {
    std::vector<uint64_t> left;  // for each of `spares`: of those that suit its job
    for (const Spare* spare : spares) {
      const auto own = spare->on_node.find(node);
      left.push_back(spare->of.together == 1       ? std::numeric_limits<uint64_t>::max()
                     : own == spare->on_node.end() ? 0
                                                   : own->second);
    }
    std::vector<FreeSlot> good;
    for (const FreeSlot& slot : slots) {
      if (!Suits(node, slot.memory_bytes, demand)) continue;
      bool kept_for_other = false;
      for (size_t i = 0; i < spares.size(); ++i) {
        if (Suits(node, slot.memory_bytes, spares[i]->of)) kept_for_other |= left[i] == 0;
      }
      if (kept_for_other) continue;
      for (size_t i = 0; i < spares.size(); ++i) left[i] -= Suits(node, slot.memory_bytes, spares[i]->of) ? 1 : 0;
      good.push_back(slot);
    }
    good.resize(good.size() - good.size() % demand.together);
    if (good.empty()) continue;
    if (demand.required.has_value()) {
      const auto domain = demand.required->domains.find(node);
      if (domain == demand.required->domains.end()) continue;
      of_domains[domain->second] += good.size();
    }
    free += good.size();
    counts[node] = good.size();
    suitable[node] = std::move(good);
  }
  if (demand.required.has_value()) {
    const std::string* const domain = BestDomain(of_domains, demand.needed(), demand.ranks);
    if (domain == nullptr) return decision;
    free = of_domains.at(*domain);
    std::erase_if(counts, [&](const auto& node) { return demand.required->domains.at(node.first) != *domain; });
  }
  uint64_t most = std::min<uint64_t>(demand.ranks, free);
  for (const Spare* spare : spares) most = std::min(most, spare->slots);
  if (most < demand.needed()) return decision;
  for (const NodeShare& share : ShareOut(counts, most - most % demand.multiple, demand)) {
    const std::vector<FreeSlot>& slots = suitable.at(share.node);
    for (size_t i = 0; i < share.ranks; ++i) {
      decision.ranks.push_back({share.node, slots[i].index, slots[i].memory_bytes});
    }
  }
  return decision;
}

void Cluster::Take(const Decision& decision, const Claim& holder) {
  Supply& supply = decision.device == DEVICE_CUDA ? cuda_ : cpu_;
  Supply::User& user = supply.users[holder.job];
  user.claim = holder;
  for (const RankSlot& rank : decision.ranks) {
    const auto node = supply.free_slots.find(rank.node);
    const uint64_t taken = std::erase_if(node->second, [&](const FreeSlot& slot) { return slot.index == rank.slot; });
    supply.all.free -= taken;
    supply.by_memory[rank.memory_bytes].free -= taken;
    supply.by_node[rank.node][rank.memory_bytes].free -= taken;
    ++user.slots[rank.node][rank.memory_bytes];
    if (node->second.empty()) supply.free_slots.erase(node);
  }
}

template <typename Matches>
std::map<NodeId, uint64_t> Cluster::SlotsHeldBy(const Demand& demand, const Matches& matches) const {
  std::map<NodeId, uint64_t> held;
  for (const auto& [job, user] : Of(Resolve(demand.device)).users) {
    if (!matches(user.claim)) continue;
    for (const auto& [node, by_memory] : user.slots) {
      for (const auto& [memory, slots] : by_memory) held[node] += Suits(node, memory, demand) ? slots : 0;
    }
  }
  return held;
}

std::map<NodeId, uint64_t> Cluster::SlotsHeldAfter(const Claim& claim, absl::Duration time,
                                                   const Demand& demand) const {
  return SlotsHeldBy(demand, [&](const Claim& other) { return ComesAfter(other, claim) && other.ends_in > time; });
}

std::map<NodeId, uint64_t> Cluster::SlotsHeldBeyond(absl::Duration time, const Demand& demand) const {
  return SlotsHeldBy(demand, [&](const Claim& other) { return other.ends_in > time; });
}

uint64_t Cluster::RoomBeside(const Demand& demand, const std::map<NodeId, uint64_t>& held) const {
  if (demand.together == 1) {
    uint64_t kept = 0;
    for (const auto& [node, slots] : held) kept += slots;
    const uint64_t total = Count(demand).total;
    return total - std::min(total, kept);
  }
  uint64_t groups = 0;
  for (const auto& [id, by_memory] : Of(Resolve(demand.device)).by_node) {
    uint64_t total = 0;
    for (const auto& [memory, counts] : by_memory) total += Suits(id, memory, demand) ? counts.total : 0;
    const auto its = held.find(id);
    groups += (total - (its == held.end() ? 0 : std::min(total, its->second))) / demand.together;
  }
  return groups * demand.together;
}

Demand Cluster::InOneDomain(const Claim& claim, const Demand& demand) const {
  if (!demand.required.has_value()) return demand;
  std::set<std::string> names;
  for (const auto& [node, domain] : demand.required->domains) names.insert(domain);
  Demand best;
  std::optional<std::pair<absl::Duration, uint64_t>> of_best;  // when it starts, and the ranks that later jobs prevent
  for (const std::string& name : names) {
    Demand part = demand;
    part.required.reset();
    for (const auto& [node, domain] : demand.required->domains) {
      if (domain != name) part.avoid.insert(node);
    }
    const absl::Duration idle_from = IdleFrom(part);
    if (idle_from == absl::InfiniteDuration()) continue;
    const Demand then = part.In(idle_from);
    const uint64_t needed = part.needed(), room = RoomBeside(then, SlotsHeldAfter(claim, idle_from, then));
    const std::pair its(StartsIn(part), needed - std::min(needed, room));
    if (of_best.has_value() && *of_best <= its) continue;
    of_best = its;
    best = std::move(part);
  }
  return best;
}

absl::Duration Cluster::StartsIn(const Demand& demand) const {
  std::set<absl::Duration> times;
  for (const auto& [job, user] : Of(Resolve(demand.device)).users) {
    if (user.claim.ends_in < absl::InfiniteDuration()) times.insert(user.claim.ends_in);
  }
  for (const Closed& window : demand.closed) {
    if (window.until > absl::ZeroDuration()) times.insert(window.until);
  }
  const std::vector<absl::Duration> ascending(times.begin(), times.end());
  for (auto from = ascending.begin(); from != ascending.end();) {
    // While the same nodes are closed: the later, the more slots are free.
    const Demand then = demand.In(*from);
    const auto same = [&](absl::Duration time) {
      return std::all_of(demand.closed.begin(), demand.closed.end(),
                         [&](const Closed& window) { return window.At(time) == window.At(*from); });
    };
    const auto to = std::find_if_not(from, ascending.end(), same);
    const auto first = std::partition_point(
        from, to, [&](absl::Duration time) { return RoomBeside(then, SlotsHeldBeyond(time, then)) < then.needed(); });
    if (first != to) return *first;
    from = to;
  }
  return absl::InfiniteDuration();
}

Spare Cluster::SpareOf(const Demand& demand, const std::map<NodeId, uint64_t>& held) const {
  Spare spare{.of = demand, .slots = 0, .on_node = {}};
  if (demand.together == 1) {
    uint64_t kept = demand.needed();
    for (const auto& [node, slots] : held) kept += slots;
    const Counts all = Count(demand);
    spare.slots = kept >= all.total ? 0 : std::min(all.total - kept, all.free);
    return spare;
  }
  const uint64_t each = demand.together, needed = (demand.needed() + each - 1) / each;
  struct Node {
    uint64_t total = 0, free = 0, left = 0;  // left: without those that are held
  };
  std::map<NodeId, Node> nodes;
  uint64_t groups = 0;
  for (const auto& [id, by_memory] : Of(Resolve(demand.device)).by_node) {
    Node& node = nodes[id];
    for (const auto& [memory, counts] : by_memory) {
      if (Suits(id, memory, demand)) node.total += counts.total, node.free += counts.free;
    }
    const auto its = held.find(id);
    node.left = node.total - (its == held.end() ? 0 : std::min(node.total, its->second));
    groups += node.left / each;
  }
  // Nodes by how many free slots one group less gives: the most comes first, then by id.
  std::set<std::pair<uint64_t, NodeId>> next;
  const auto offer = [&](const NodeId& id) {
    const uint64_t gain = std::min(each, nodes[id].free - spare.on_node[id]);
    if (gain > 0) next.emplace(each - gain, id);
  };
  for (const auto& [id, node] : nodes) {
    // Where some held slots are needed, too, those that make a group with them are not free for others.
    const uint64_t never = node.total % each, taken = node.total - node.left;
    const uint64_t no_group = groups >= needed ? node.left % each : never - std::min(never, taken);
    spare.on_node[id] = std::min(node.free, no_group);
    offer(id);
  }
  for (; groups > needed && !next.empty(); --groups) {
    const auto [lost, id] = *next.begin();
    next.erase(next.begin());
    spare.on_node[id] += each - lost;
    offer(id);
  }
  for (const auto& [node, slots] : spare.on_node) spare.slots += slots;
  return spare;
}

}  // namespace muster::scheduler
