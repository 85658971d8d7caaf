// Which jobs may take slots of their projects' quotas in one scheduling pass. Pure.
//
//   QuotaPass quotas(all);
//   quotas.Run("a", device, claim, slots);  // for each job that holds slots
//   for (const Claim& claim : queue) {      // in queue order
//     if (quotas.Consider("a", device, claim, least) >= least) quotas.Run("a", device, claim, least);
//   }
//
// The rule is that of pass.h, for the slots that a project may hold instead of those of the cluster. The first job of a
// project that has to wait for quota, and that the project could hold if its other jobs had ended, is the project's
// *head* (of a device). A later job of the project may overtake it only on quota that the head does not need: if
//     the head's slots + the slots held by jobs of the project that come after it in queue order + the job's slots
// do not exceed what the project may hold; or, where it is known by when the head starts, if the job ends by then. So
// no stream of a project's small jobs can starve a larger one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/scheduler/queue_order.h"
#include "coordinator/scheduler/quota.h"
#include "proto/job.pb.h"

namespace muster::scheduler {

// Not thread-safe. Devices are cpu or cuda.
class QuotaPass {
 public:
  // `quotas`: nothing is held yet.
  explicit QuotaPass(Quotas quotas) : quotas_(std::move(quotas)) {}

  // The job holds slots, or starts.
  void Run(const std::string& project, Device device, const Claim& claim, uint64_t slots);

  // How many more slots the project may take for the job; fewer than `least`: it waits for quota. `idle_from`: when an
  // idle cluster could hold it; where that is never, it holds back no later jobs. REQUIRES: calls in queue order.
  uint64_t Consider(const std::string& project, Device device, const Claim& claim, uint64_t least,
                    absl::Duration idle_from);
  // Whether it ends, by its time limit, before its project's head starts. False: there is no head, or it is not known
  // when it starts.
  bool EndsBeforeHead(const std::string& project, Device device, const Claim& claim) const;
  // It is the first job of its project that waits for quota.
  bool IsHead(const std::string& project, Device device, const JobId& job) const;

  // For users: why the job, of which Consider returned less, waits.
  std::string Why(const std::string& project, Device device, const JobId& job, uint64_t least) const;
  const Quotas& quotas() const { return quotas_; }

 private:
  using Key = std::pair<std::string, Device>;
  struct Running {
    Claim claim;
    uint64_t slots;
  };
  struct Head {
    Claim claim;
    uint64_t slots;
    bool known;                 // `free_until` is when it starts at the latest, as far as that depends on quota
    absl::Duration free_until;  // jobs that end by then cannot delay it
  };
  const Head* HeadOf(const Key& key) const;
  // What the project may hold now.
  uint64_t Capacity(const Key& key) const;
  absl::Duration StartsIn(const Key& key, uint64_t missing) const;
  // Of its capacity: what is not kept for the head.
  uint64_t Spare(const Key& key, const Head& head) const;

  Quotas quotas_;
  std::map<Key, std::vector<Running>> running_;
  std::map<Key, Head> heads_;
};

}  // namespace muster::scheduler
