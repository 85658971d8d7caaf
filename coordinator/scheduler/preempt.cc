#include "coordinator/scheduler/preempt.h"

#include <algorithm>
#include <optional>
#include <set>
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

bool Fits(const std::vector<NodeView>& nodes, const Demand& demand) {
  return !Cluster(nodes).Place(demand).ranks.empty();
}

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
std::vector<const Victim*> Enough(const std::vector<NodeView>& nodes, const Claimant& claimant,
                                  const std::vector<Victim>& candidates, Quotas quotas) {
  std::vector<const Victim*> chosen;
  const uint64_t needed = claimant.demand.needed();
  uint64_t taken = Cluster(nodes).FreeSlots(claimant.demand);
  bool fits = false;
  for (const Victim& victim : candidates) {
    if (!MayPreempt(claimant, victim, quotas)) continue;  // what was taken before counts
    quotas.Release(victim.project, claimant.demand.device, victim.slots);
    chosen.push_back(&victim);
    taken += victim.slots;
    fits = taken >= needed && Fits(Without(nodes, chosen), claimant.demand);
    if (fits) break;
  }
  if (!fits) return {};
  for (size_t i = chosen.size(); i-- > 0;) {
    std::vector<const Victim*> fewer = chosen;
    fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(i));
    if (Fits(Without(nodes, fewer), claimant.demand)) chosen = std::move(fewer);
  }
  return chosen;
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
  if (Fits(nodes, claimant.demand)) return {};
  std::sort(candidates.begin(), candidates.end(), [](const Victim& a, const Victim& b) {
    return std::tuple(!a.preemptible, a.lost_slot_seconds, b.claim.sequence) <
           std::tuple(!b.preemptible, b.lost_slot_seconds, a.claim.sequence);
  });
  std::vector<Victim> elastic;
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(elastic),
               [](const Victim& victim) { return victim.fewer.ranks > 0; });
  std::vector<const Victim*> chosen = Enough(nodes, claimant, elastic, quotas);
  if (chosen.empty() || !AllFit(Without(nodes, chosen), claimant, chosen)) {
    chosen = Enough(nodes, claimant, candidates, std::move(quotas));
  }
  std::vector<JobId> victims;
  for (const Victim* victim : chosen) victims.push_back(victim->claim.job);
  return victims;
}

}  // namespace muster::scheduler
