#include "coordinator/scheduler/quota_pass.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/counted.h"

namespace muster::scheduler {

void QuotaPass::Run(const std::string& project, Device device, const Claim& claim, uint64_t slots) {
  quotas_.Hold(project, device, slots);
  running_[{project, device}].push_back({claim, slots});
}

const QuotaPass::Head* QuotaPass::HeadOf(const Key& key) const {
  const auto head = heads_.find(key);
  return head == heads_.end() ? nullptr : &head->second;
}

uint64_t QuotaPass::Capacity(const Key& key) const {
  return quotas_.Room(key.first, key.second) + quotas_.Held(key.first, key.second);
}

uint64_t QuotaPass::Consider(const std::string& project, Device device, const Claim& claim, uint64_t least,
                             absl::Duration idle_from) {
  const uint64_t room = quotas_.Room(project, device);
  if (room == Quotas::kUnlimited) return room;
  const Key key{project, device};
  if (const Head* head = HeadOf(key); head != nullptr) {
    return EndsBeforeHead(project, device, claim) ? room : std::min(room, Spare(key, *head));
  }
  if (idle_from < absl::InfiniteDuration() && room < least && least <= Capacity(key)) {
    const absl::Duration starts_in = StartsIn(key, least - room);
    const bool known = starts_in < absl::InfiniteDuration();
    heads_.emplace(key, Head{claim, least, known, known ? std::max(starts_in, idle_from) : idle_from});
  }
  return room;
}

absl::Duration QuotaPass::StartsIn(const Key& key, uint64_t missing) const {
  const auto running = running_.find(key);
  if (running == running_.end()) return absl::InfiniteDuration();
  std::vector<std::pair<absl::Duration, uint64_t>> ends;
  for (const Running& job : running->second) ends.emplace_back(job.claim.ends_in, job.slots);
  std::sort(ends.begin(), ends.end());
  for (const auto& [time, slots] : ends) {
    if (slots >= missing) return time;
    missing -= slots;
  }
  return absl::InfiniteDuration();
}

uint64_t QuotaPass::Spare(const Key& key, const Head& head) const {
  uint64_t kept = head.slots;
  if (const auto running = running_.find(key); running != running_.end()) {
    for (const Running& job : running->second) {
      const bool counts = head.known || ComesAfter(job.claim, head.claim);
      if (counts && job.claim.ends_in > head.free_until) kept += job.slots;
    }
  }
  const uint64_t capacity = Capacity(key);
  return capacity - std::min(capacity, kept);
}

bool QuotaPass::EndsBeforeHead(const std::string& project, Device device, const Claim& claim) const {
  const Head* head = HeadOf({project, device});
  return head != nullptr && claim.ends_in <= head->free_until;
}

bool QuotaPass::IsHead(const std::string& project, Device device, const JobId& job) const {
  const Head* head = HeadOf({project, device});
  return head != nullptr && head->claim.job == job;
}

std::string QuotaPass::Why(const std::string& project, Device device, const JobId& job, uint64_t least) const {
  const Head* head = HeadOf({project, device});
  if (head == nullptr || head->claim.job == job || quotas_.Room(project, device) < least) {
    return quotas_.Why(project, device, least);
  }
  return absl::StrCat("waiting behind ", head->claim.job.value(), ", for which ", Counted(head->slots, "slot", "slots"),
                      " of project ", project, "'s quota ", head->slots == 1 ? "is" : "are", " kept");
}

}  // namespace muster::scheduler
