#include "coordinator/scheduler/pass.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::scheduler {

uint64_t Pass::Spare(const Head& head) const {
  const uint64_t kept = head.demand.needed() + head.overtakers, total = cluster_->Slots(head.demand);
  return kept >= total ? 0 : std::min(total - kept, cluster_->FreeSlots(head.demand));
}

Demand Pass::Beside(const Demand& demand, const Head& head) {
  Demand beside = demand;
  beside.below_bytes = head.demand.slot_bytes;
  return beside;
}

// The job must wait for the head.
Decision Pass::Held(const Demand& demand) const {
  Decision decision;
  decision.device = cluster_->Resolve(demand.device);
  decision.fits_when_idle = cluster_->FitsWhenIdle(demand);
  return decision;
}

Decision Pass::Consider(const Claim& claim, const Demand& demand, const Decision* kept) {
  const Device device = cluster_->Resolve(demand.device);
  const auto head = heads_.find(device);
  Demand allowed = demand;
  if (head != heads_.end()) {
    const uint64_t spare = Spare(head->second);
    if (demand.needed() > spare) {
      if (head->second.demand.slot_bytes == 0) return Held(demand);
      Decision beside = cluster_->Place(Beside(demand, head->second), kept);
      return beside.ranks.empty() ? Held(demand) : beside;
    }
    allowed.ranks = static_cast<uint32_t>(std::min<uint64_t>(demand.ranks, spare));
  }
  Decision decision = cluster_->Place(allowed, kept);
  if (decision.ranks.empty() && decision.fits_when_idle && head == heads_.end()) {
    Demand resolved = demand;
    resolved.device = device;
    heads_[device] = {claim.job, resolved, cluster_->SlotsHeldAfter(claim, resolved)};
  }
  return decision;
}

std::string Pass::Why(const Decision& decision, const Demand& demand) const {
  if (!decision.reason.empty()) return decision.reason;
  if (demand.needed() > cluster_->FreeSlots(demand)) return cluster_->Place(demand).reason;
  const Head& head = heads_.at(decision.device);
  return absl::StrCat("waits for ", head.job.value(), ", for which ", head.demand.needed(), " slots are reserved");
}

void Pass::Start(const Claim& claim, const Decision& decision) {
  cluster_->Take(decision, claim);
  const auto head = heads_.find(decision.device);
  if (head == heads_.end()) return;
  for (const RankSlot& rank : decision.ranks) {
    head->second.overtakers += Cluster::Suits(rank.memory_bytes, head->second.demand);
  }
}

bool Pass::Over() const {
  if (heads_.size() < 2) return false;  // cpu and cuda
  return std::all_of(heads_.begin(), heads_.end(), [this](const auto& entry) {
    const Head& head = entry.second;
    if (Spare(head) > 0) return false;
    return head.demand.slot_bytes == 0 || cluster_->FreeSlots(Beside({1, head.demand.device}, head)) == 0;
  });
}

}  // namespace muster::scheduler
