#include "coordinator/scheduler/pass.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/check.h"
#include "common/counted.h"

namespace muster::scheduler {

std::string InMinutes(absl::Duration time) { return absl::FormatDuration(absl::Ceil(time, absl::Minutes(1))); }

Demand Pass::Beside(const Demand& demand, const Head& head) {
  Demand beside = demand;
  beside.below_bytes = head.demand.slot_bytes;
  beside.or_on = head.demand.Avoided();
  return beside;
}

bool Pass::LeavesSlots(const Head& head) { return head.demand.slot_bytes > 0 || head.demand.AvoidsAny(); }

const Pass::Head* Pass::FindHead(Device device, const std::string& reservation) const {
  const auto head = heads_.find({device, reservation});
  return head == heads_.end() ? nullptr : &head->second;
}

const Pass::Head* Pass::FindLateHead(Device device, const std::string& reservation) const {
  const auto head = late_heads_.find(device);
  return head == late_heads_.end() || !reservation.empty() ? nullptr : &head->second;
}

// The job must wait for the head.
Decision Pass::Held(const Demand& demand) const {
  Decision decision;
  decision.device = cluster_->Resolve(demand.device);
  decision.fits_when_idle = cluster_->FitsWhenIdle(demand);
  return decision;
}

Decision Pass::BesideHead(const Claim& claim, const Demand& demand, const Decision* kept,
                          std::vector<const Spare*> spares) const {
  const Head* const head = FindHead(cluster_->Resolve(demand.device), demand.reservation);
  if (head == nullptr) return cluster_->Place(demand, kept, spares);
  if (claim.ends_in <= head->free_until && demand.needed() <= cluster_->FreeSlots(demand)) {
    Decision decision = cluster_->Place(demand, kept, spares);
    if (!decision.ranks.empty()) return decision;
  }
  if (demand.needed() <= head->spare.slots) {
    spares.push_back(&head->spare);
    Decision decision = cluster_->Place(demand, kept, spares);
    if (!decision.ranks.empty()) return decision;
    spares.pop_back();
  }
  if (!LeavesSlots(*head)) return Held(demand);
  Decision beside = cluster_->Place(Beside(demand, *head), kept, spares);
  return beside.ranks.empty() ? Held(demand) : beside;
}

Decision Pass::Consider(const Claim& claim, const Demand& demand, const Decision* kept) {
  const Device device = cluster_->Resolve(demand.device);
  if (const Head* late = FindLateHead(device, demand.reservation);
      late != nullptr && claim.ends_in > late->free_until) {
    Decision decision = BesideHead(claim, demand, kept, {&late->spare});
    if (!decision.ranks.empty()) return decision;
    const Demand apart = cluster_->Apart(demand, late->demand);
    decision = BesideHead(claim, apart, kept, {});
    if (!decision.ranks.empty()) return decision;
    if (FindHead(device, demand.reservation) != nullptr) return Held(demand);
    // It may still be the first that waits for slots which the late head leaves.
    for (const Demand* its : {demand.needed() <= late->spare.slots ? &demand : nullptr, &apart}) {
      if (its == nullptr || cluster_->IdleFrom(*its) > absl::ZeroDuration()) continue;
      Decision waits = cluster_->Place(*its);
      if (!waits.ranks.empty()) continue;
      heads_[{device, demand.reservation}] = MakeHead(claim, *its, device);
      return waits;
    }
    return Held(demand);
  }
  Decision decision = BesideHead(claim, demand, kept, {});
  if (!decision.ranks.empty() || !decision.fits_when_idle) return decision;
  if (FindHead(device, demand.reservation) != nullptr) return decision;
  if (cluster_->IdleFrom(demand) > absl::ZeroDuration()) {
    if (!late_heads_.contains(device)) late_heads_[device] = MakeHead(claim, demand, device);
  } else {
    heads_[{device, demand.reservation}] = MakeHead(claim, demand, device);
  }
  return decision;
}

Pass::Head Pass::MakeHead(const Claim& claim, const Demand& demand, Device device) const {
  Head head{claim.job, demand};
  head.demand.device = device;
  head.demand = cluster_->InOneDomain(claim, head.demand);
  head.starts_in = cluster_->StartsIn(head.demand);
  const Head* const late = FindLateHead(device, demand.reservation);
  // Then it may wait for the late head, which comes before it: that could start earlier, or it would not end before
  // that.
  if (late != nullptr && (head.starts_in > late->idle_from || head.starts_in + claim.ends_in > late->free_until)) {
    head.starts_in = absl::InfiniteDuration();
  }
  head.idle_from = cluster_->IdleFrom(head.demand);
  head.free_until = head.starts_in < absl::InfiniteDuration() ? head.starts_in : head.idle_from;
  head.demand = head.demand.In(head.free_until);
  head.overtakers = cluster_->SlotsHeldAfter(claim, head.free_until, head.demand);
  head.spare = SpareBeside(head);
  return head;
}

std::string Pass::Why(const Decision& decision, const Demand& demand) const {
  if (!decision.reason.empty()) return decision.reason;
  if (demand.needed() > cluster_->FreeSlots(demand)) return cluster_->Place(demand).reason;
  const Head* head = FindHead(decision.device, demand.reservation);
  if (head == nullptr) head = FindLateHead(decision.device, demand.reservation);
  MUSTER_CHECK(head != nullptr, "a job waits on free slots, and no job is ahead of it");
  const std::string waiting = absl::StrCat("waiting behind ", head->job.value(), ", for which ",
                                           Counted(head->demand.needed(), "slot is", "slots are"), " reserved");
  if (head->free_until == absl::ZeroDuration()) return waiting;
  return absl::StrCat(waiting, head->starts_in < absl::InfiniteDuration() ? " in at most " : " in not less than ",
                      InMinutes(head->free_until), ": with a time_limit that ends before, it could start now");
}

void Pass::Start(const Claim& claim, const Decision& decision) {
  cluster_->Take(decision, claim);
  for (auto& [pool, head] : heads_) {
    if (pool.first == decision.device) Overtake(claim, decision, head);
  }
  if (const auto late = late_heads_.find(decision.device); late != late_heads_.end()) {
    Overtake(claim, decision, late->second);
  }
}

void Pass::Overtake(const Claim& claim, const Decision& decision, Head& head) const {
  for (const RankSlot& rank : decision.ranks) {
    const bool stays = claim.ends_in > head.free_until && Cluster::Suits(rank.node, rank.memory_bytes, head.demand);
    head.overtakers[rank.node] += stays ? 1 : 0;
  }
  head.spare = SpareBeside(head);
}

Spare Pass::SpareBeside(const Head& head) const {
  if (head.starts_in == absl::InfiniteDuration()) return cluster_->SpareOf(head.demand, head.overtakers);
  return cluster_->SpareOf(head.demand, cluster_->SlotsHeldBeyond(head.starts_in, head.demand));
}

Pass::Before Pass::EndsBefore(const Claim& claim, Device device, const std::string& reservation) const {
  const auto ends_before = [&](const Head* head) { return head != nullptr && claim.ends_in <= head->free_until; };
  const Device resolved = cluster_->Resolve(device);
  return {ends_before(FindHead(resolved, reservation)), ends_before(FindLateHead(resolved, reservation))};
}

bool Pass::IsHead(const JobId& job) const {
  return std::any_of(heads_.begin(), heads_.end(), [&](const auto& entry) { return entry.second.job == job; });
}

absl::Duration Pass::StartsIn(const JobId& job) const {
  for (const auto& [pool, head] : heads_) {
    if (head.job == job) return head.starts_in;
  }
  for (const auto& [device, head] : late_heads_) {
    if (head.job == job) return head.starts_in;
  }
  return absl::InfiniteDuration();
}

bool Pass::Over() const {
  const Head* const cpu = FindHead(DEVICE_CPU, "");
  const Head* const cuda = FindHead(DEVICE_CUDA, "");
  if (cpu == nullptr || cuda == nullptr) return false;
  const std::array both = {cpu, cuda};
  return std::all_of(both.begin(), both.end(), [this](const Head* of_device) {
    const Head& head = *of_device;
    if (head.spare.slots > 0) return false;
    if (head.free_until > absl::ZeroDuration() && cluster_->FreeSlots({1, head.demand.device}) > 0) return false;
    return !LeavesSlots(head) || cluster_->FreeSlots(Beside({1, head.demand.device}, head)) == 0;
  });
}

}  // namespace muster::scheduler
