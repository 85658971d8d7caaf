#include "coordinator/scheduler/preempt.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace muster::scheduler {
namespace {

// The nodes without these jobs.
std::vector<NodeView> Without(std::vector<NodeView> nodes, const std::vector<const Victim*>& gone) {
  std::set<JobId> jobs;
  for (const Victim* victim : gone) jobs.insert(victim->claim.job);
  for (NodeView& node : nodes) {
    for (SlotView& slot : node.slots) {
      if (jobs.contains(slot.holder.job)) slot.holder = {};
    }
  }
  return nodes;
}

// Whether a demand can be placed while jobs give up their slots. Cluster::Place says the same of the nodes without
// those jobs, but a step costs the slots of one job here, not those of all nodes.
class Room {
 public:
  // With a resolved device.
  Room(const std::vector<NodeView>& nodes, const Demand& demand)
      : needed_(demand.needed()), together_(demand.together) {
    for (const NodeView& view : nodes) {
      if (view.availability != Availability::kTakesRanks || demand.Avoids(view.id)) continue;
      std::string domain;
      if (demand.required.has_value()) {
        const auto found = demand.required->domains.find(view.id);
        if (found == demand.required->domains.end()) continue;
        domain = found->second;
      }
      nodes_[view.id].domain = domain;
      uint64_t free = 0;
      for (const SlotView& slot : view.slots) {
        const bool of_device = (slot.device == DEVICE_CUDA) == (demand.device == DEVICE_CUDA);
        if (!of_device || slot.stuck || !Cluster::Suits(view.id, slot.memory_bytes, demand)) continue;
        if (slot.holder.job.empty()) {
          ++free;
        } else {
          ++held_[slot.holder.job][view.id];
        }
      }
      SetFree(view.id, free);
    }
  }

  // Whether it holds any slot that suits the demand.
  bool Helps(const JobId& job) const { return held_.contains(job); }
  bool Fits() const { return fitting_ > 0; }
  // REQUIRES: it helps, and holds its slots.
  void GiveUp(const JobId& job) {
    for (const auto& [node, slots] : held_.at(job)) SetFree(node, nodes_.at(node).free + slots);
  }
  // REQUIRES: it has given them up.
  void TakeBack(const JobId& job) {
    for (const auto& [node, slots] : held_.at(job)) SetFree(node, nodes_.at(node).free - slots);
  }

 private:
  struct Node {
    std::string domain;  // of demand.required
    uint64_t free = 0;   // slots that suit the demand
  };
  void SetFree(const NodeId& id, uint64_t free) {
    Node& node = nodes_.at(id);
    uint64_t& room = rooms_[node.domain];
    fitting_ -= room >= needed_ ? 1 : 0;
    room = room - (node.free - node.free % together_) + (free - free % together_);
    fitting_ += room >= needed_ ? 1 : 0;
    node.free = free;
  }

  uint64_t needed_, together_;
  std::map<NodeId, Node> nodes_;
  std::map<JobId, std::map<NodeId, uint64_t>> held_;
  std::map<std::string, uint64_t> rooms_;  // for ranks, by domain
  size_t fitting_ = 0;                     // domains with room for all that it needs
};

// Whether the claimant fits, and beside it each of the others with fewer ranks.
bool AllFit(const std::vector<NodeView>& nodes, const Claimant& claimant, const std::vector<const Victim*>& others) {
  Cluster cluster(nodes);
  const Decision own = cluster.Place(claimant.demand);
  if (own.ranks.empty()) return false;
  cluster.Take(own, claimant.claim);
  for (const Victim* other : others) {
    const Decision again = cluster.Place(other->fewer);
    if (again.ranks.empty()) return false;
    cluster.Take(again, other->claim);
  }
  return true;
}

// Cheapest first, until the claimant fits; then what turned out not to be needed goes back, the dearest first. None:
// not even all of them are enough.
std::vector<const Victim*> Enough(Room room, const Claimant& claimant, const std::vector<Victim>& candidates,
                                  Quotas quotas) {
  std::vector<const Victim*> chosen;
  for (const Victim& victim : candidates) {
    if (!room.Helps(victim.claim.job)) continue;
    if (!MayPreempt(claimant, victim, quotas)) continue;  // what was taken before counts
    quotas.Release(victim.project, claimant.demand.device, victim.slots);
    chosen.push_back(&victim);
    room.GiveUp(victim.claim.job);
    if (room.Fits()) break;
  }
  if (!room.Fits()) return {};
  std::vector<const Victim*> needed;
  for (; !chosen.empty(); chosen.pop_back()) {
    room.TakeBack(chosen.back()->claim.job);
    if (room.Fits()) continue;
    room.GiveUp(chosen.back()->claim.job);
    needed.push_back(chosen.back());
  }
  std::reverse(needed.begin(), needed.end());
  return needed;
}

}  // namespace

bool MayPreempt(const Claimant& claimant, const Victim& victim, const Quotas& quotas) {
  const Device device = claimant.demand.device;
  const Quota* own = quotas.Find(claimant.project, device);
  const Quota* its = quotas.Find(victim.project, device);
  if (own != nullptr && !claimant.claim.borrows && victim.claim.borrows && victim.project != claimant.project &&
      quotas.Borrows(victim.project, device)) {
    if (its == nullptr || (!own->cohort.empty() && its->cohort == own->cohort)) return true;
  }
  if (!claimant.by_priority || victim.claim.priority >= claimant.claim.priority) return false;
  if (claimant.claim.borrows && !victim.claim.borrows) return false;
  return its == nullptr || victim.claim.borrows || victim.project == claimant.project;
}

std::vector<JobId> ChooseVictims(const std::vector<NodeView>& nodes, const Claimant& claimant,
                                 std::vector<Victim> candidates, Quotas quotas) {
  const Room room(nodes, claimant.demand);
  if (room.Fits()) return {};
  std::sort(candidates.begin(), candidates.end(), [](const Victim& a, const Victim& b) {
    return std::tuple(!a.preemptible, a.lost_slot_seconds, b.claim.sequence) <
           std::tuple(!b.preemptible, b.lost_slot_seconds, a.claim.sequence);
  });
  std::vector<Victim> elastic;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(elastic),
               [](const Victim& victim) { return victim.fewer.ranks > 0; });
  std::vector<const Victim*> chosen = Enough(room, claimant, elastic, quotas);
  if (chosen.empty() || !AllFit(Without(nodes, chosen), claimant, chosen)) {
    chosen = Enough(room, claimant, candidates, std::move(quotas));
  }
  std::vector<JobId> victims;
  for (const Victim* victim : chosen) victims.push_back(victim->claim.job);
  return victims;
}

}  // namespace muster::scheduler
