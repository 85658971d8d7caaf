#include "coordinator/scheduler/pass.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::scheduler {

uint64_t Pass::Spare(Device device, const Head& head) const {
  const uint64_t kept = head.ranks + head.overtakers, total = cluster_->Slots(device);
  return kept >= total ? 0 : std::min(total - kept, cluster_->FreeSlots(device));
}

Decision Pass::Consider(const Claim& claim, const Demand& demand) {
  const Device device = cluster_->Resolve(demand.device);
  const auto head = heads_.find(device);
  if (head != heads_.end() && demand.ranks > Spare(device, head->second)) {
    Decision decision;
    decision.device = device;
    decision.fits_when_idle = cluster_->FitsWhenIdle(demand);
    return decision;
  }
  Decision decision = cluster_->Place(demand);
  if (decision.ranks.empty() && decision.fits_when_idle && head == heads_.end()) {
    heads_[device] = {claim.job, demand.ranks, cluster_->SlotsHeldBehind(claim, device)};
  }
  return decision;
}

std::string Pass::Why(const Decision& decision, const Demand& demand) const {
  if (!decision.reason.empty()) return decision.reason;
  if (demand.ranks > cluster_->FreeSlots(decision.device)) return cluster_->Place(demand).reason;
  const Head& head = heads_.at(decision.device);
  return absl::StrCat("waits behind ", head.job.value(), ", for which ", head.ranks, " slots are kept");
}

void Pass::Start(const Claim& claim, const Decision& decision) {
  cluster_->Take(decision, claim);
  if (const auto head = heads_.find(decision.device); head != heads_.end()) {
    head->second.overtakers += decision.ranks.size();
  }
}

bool Pass::Over() const {
  if (heads_.size() < 2) return false;  // cpu and cuda
  return std::all_of(heads_.begin(), heads_.end(),
                     [this](const auto& head) { return Spare(head.first, head.second) == 0; });
}

}  // namespace muster::scheduler
