// Quotas of projects: how many slots a project may hold, and which of them are lent to it. The words are Kueue's
// (ClusterQueue): each project of a cohort has a nominal quota of a device; what it does not use, the others may
// borrow, each up to its borrowing limit. Pure.
//
//   Quotas quotas;
//   quotas.Set("a", DEVICE_CUDA, {.nominal = 4, .cohort = "research"});
//   quotas.Set("b", DEVICE_CUDA, {.nominal = 4, .cohort = "research"});
//   quotas.Hold("a", DEVICE_CUDA, 4);
//   quotas.Room("a", DEVICE_CUDA);        // 4: all of b's
//   quotas.Guaranteed("a", DEVICE_CUDA);  // 0
//
// A project without a nominal quota of a device has no limit and no guarantee: it may hold whatever is free, and counts
// as a borrower as soon as another project has a quota of that device.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "proto/job.pb.h"

namespace muster::scheduler {

struct Quota {
  uint64_t nominal = 0;
  std::optional<uint64_t> borrowing_limit = {};  // none: whatever the cohort does not use
  std::string cohort = {};                       // empty: it neither lends nor borrows
};

class Quotas {
 public:
  static constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

  // A project's quota of cpu or cuda slots.
  void Set(const std::string& project, Device device, Quota quota);
  void Hold(const std::string& project, Device device, uint64_t slots) { held_[{project, device}] += slots; }
  // REQUIRES: it holds them.
  void Release(const std::string& project, Device device, uint64_t slots) { held_[{project, device}] -= slots; }

  bool empty() const { return quotas_.empty(); }
  uint64_t Held(const std::string& project, Device device) const;
  // Null: none.
  const Quota* Find(const std::string& project, Device device) const;

  // How many more slots the project may take. Its nominal quota is always its own, even while others hold it.
  uint64_t Room(const std::string& project, Device device) const;
  // How many of them are its own. 0 for one without a quota.
  uint64_t Guaranteed(const std::string& project, Device device) const;
  // Whether it holds more than its own. One without a quota does as soon as it holds any, if another has a quota.
  bool Borrows(const std::string& project, Device device) const;

  // For users: why it may not take so many more. REQUIRES: more than its room.
  std::string Why(const std::string& project, Device device, uint64_t slots) const;

 private:
  using Key = std::pair<std::string, Device>;
  // Nominal quota of the cohort that no project holds.
  uint64_t Idle(const std::string& cohort, Device device) const;
  std::map<Key, Quota> quotas_;
  std::map<Key, uint64_t> held_;
};

}  // namespace muster::scheduler
