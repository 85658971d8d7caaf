#include "coordinator/scheduler/quota.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster::scheduler {

void Quotas::Set(const std::string& project, Device device, Quota quota) {
  quotas_[{project, device}] = std::move(quota);
}

uint64_t Quotas::Held(const std::string& project, Device device) const {
  const auto held = held_.find({project, device});
  return held == held_.end() ? 0 : held->second;
}

const Quota* Quotas::Find(const std::string& project, Device device) const {
  const auto quota = quotas_.find({project, device});
  return quota == quotas_.end() ? nullptr : &quota->second;
}

uint64_t Quotas::Idle(const std::string& cohort, Device device) const {
  uint64_t nominal = 0, held = 0;
  for (const auto& [key, quota] : quotas_) {
    if (key.second != device || quota.cohort != cohort) continue;
    nominal += quota.nominal;
    held += Held(key.first, device);
  }
  return nominal - std::min(nominal, held);
}

uint64_t Quotas::Guaranteed(const std::string& project, Device device) const {
  const Quota* quota = Find(project, device);
  return quota == nullptr ? 0 : quota->nominal - std::min(quota->nominal, Held(project, device));
}

uint64_t Quotas::Room(const std::string& project, Device device) const {
  const Quota* quota = Find(project, device);
  if (quota == nullptr) return kUnlimited;
  const uint64_t own = Guaranteed(project, device);
  if (quota->cohort.empty()) return own;
  uint64_t room = Idle(quota->cohort, device);
  if (quota->borrowing_limit.has_value()) {
    const uint64_t most = quota->nominal + *quota->borrowing_limit, held = Held(project, device);
    room = std::min(room, most - std::min(most, held));
  }
  return std::max(own, room);
}

bool Quotas::Borrows(const std::string& project, Device device) const {
  const uint64_t held = Held(project, device);
  if (const Quota* quota = Find(project, device); quota != nullptr) return held > quota->nominal;
  return held > 0 &&
         std::any_of(quotas_.begin(), quotas_.end(), [&](const auto& entry) { return entry.first.second == device; });
}

std::string Quotas::Why(const std::string& project, Device device, uint64_t slots) const {
  const Quota* quota = Find(project, device);
  const uint64_t nominal = quota == nullptr ? 0 : quota->nominal;
  const uint64_t room = Room(project, device), own = Guaranteed(project, device);
  std::string why = absl::StrCat("project ", project, " may not take ", slots, " more ",
                                 device == DEVICE_CUDA ? "cuda" : "cpu", slots == 1 ? " slot" : " slots", ": it holds ",
                                 Held(project, device), ", its nominal quota is ", nominal);
  if (room > own) absl::StrAppend(&why, ", and it may borrow ", room - own, " now");
  return why;
}

}  // namespace muster::scheduler
