#include "coordinator/scheduler/pass.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::scheduler {

std::string InMinutes(absl::Duration time) { return absl::FormatDuration(absl::Ceil(time, absl::Minutes(1))); }

Demand Pass::Beside(const Demand& demand, const Head& head) {
  Demand beside = demand;
  beside.below_bytes = head.demand.slot_bytes;
  beside.or_on = head.demand.avoid;
  return beside;
}

bool Pass::LeavesSlots(const Head& head) { return head.demand.slot_bytes > 0 || !head.demand.avoid.empty(); }

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
  if (head != heads_.end()) {
    if (EndsBeforeHead(claim, device) && demand.needed() <= cluster_->FreeSlots(demand)) {
      Decision decision = cluster_->Place(demand, kept);
      if (!decision.ranks.empty()) return decision;
    }
    if (demand.needed() <= head->second.spare.slots) {
      Decision decision = cluster_->Place(demand, kept, &head->second.spare);
      if (!decision.ranks.empty()) return decision;
    }
    if (!LeavesSlots(head->second)) return Held(demand);
    Decision beside = cluster_->Place(Beside(demand, head->second), kept);
    return beside.ranks.empty() ? Held(demand) : beside;
  }
  Decision decision = cluster_->Place(demand, kept);
  if (decision.ranks.empty() && decision.fits_when_idle) {
    Head waits{claim.job, demand};
    waits.demand.device = device;
    waits.demand = cluster_->InOneDomain(claim, waits.demand);
    waits.overtakers = cluster_->SlotsHeldAfter(claim, waits.demand);
    waits.starts_in = cluster_->StartsIn(waits.demand);
    waits.spare = SpareBeside(waits);
    heads_[device] = std::move(waits);
  }
  return decision;
}

std::string Pass::Why(const Decision& decision, const Demand& demand) const {
  if (!decision.reason.empty()) return decision.reason;
  if (demand.needed() > cluster_->FreeSlots(demand)) return cluster_->Place(demand).reason;
  const Head& head = heads_.at(decision.device);
  return absl::StrCat("waiting behind ", head.job.value(), ", for which ", head.demand.needed(), " slots are reserved",
                      head.starts_in == absl::InfiniteDuration()
                          ? ""
                          : absl::StrCat(" in at most ", InMinutes(head.starts_in),
                                         ": with a time_limit that ends before, it could start now"));
}

void Pass::Start(const Claim& claim, const Decision& decision) {
  cluster_->Take(decision, claim);
  const auto head = heads_.find(decision.device);
  if (head == heads_.end()) return;
  for (const RankSlot& rank : decision.ranks) {
    head->second.overtakers[rank.node] += Cluster::Suits(rank.node, rank.memory_bytes, head->second.demand);
  }
  head->second.spare = SpareBeside(head->second);
}

Spare Pass::SpareBeside(const Head& head) const {
  if (head.starts_in == absl::InfiniteDuration()) return cluster_->SpareOf(head.demand, head.overtakers);
  return cluster_->SpareOf(head.demand, cluster_->SlotsHeldBeyond(head.starts_in, head.demand));
}

bool Pass::EndsBeforeHead(const Claim& claim, Device device) const {
  const auto head = heads_.find(cluster_->Resolve(device));
  if (head == heads_.end() || head->second.starts_in == absl::InfiniteDuration()) return false;
  return claim.ends_in <= head->second.starts_in;
}

bool Pass::IsHead(const JobId& job) const {
  return std::any_of(heads_.begin(), heads_.end(), [&](const auto& entry) { return entry.second.job == job; });
}

absl::Duration Pass::StartsIn(const JobId& job) const {
  for (const auto& [device, head] : heads_) {
    if (head.job == job) return head.starts_in;
  }
  return absl::InfiniteDuration();
}

bool Pass::Over() const {
  if (heads_.size() < 2) return false;  // cpu and cuda
  return std::all_of(heads_.begin(), heads_.end(), [this](const auto& entry) {
    const Head& head = entry.second;
    if (head.spare.slots > 0) return false;
    if (head.starts_in < absl::InfiniteDuration() && cluster_->FreeSlots({1, head.demand.device}) > 0) return false;
    return !LeavesSlots(head) || cluster_->FreeSlots(Beside({1, head.demand.device}, head)) == 0;
  });
}

}  // namespace muster::scheduler
