// Projects: who belongs to which, what they have used, and what their quotas let them hold. The arithmetic is
// scheduler/quota.h's and fair_share.h's. Until an admin sets the first project, nothing here changes anything. Private
// to coordinator/core.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/records.h"
#include "coordinator/core/transaction.h"
#include "coordinator/scheduler/queue_order.h"
#include "coordinator/scheduler/quota.h"

namespace muster::core {

// The project of users who are in no other. It always exists; an admin may give it a weight and quotas.
inline constexpr char kDefaultProject[] = "default";

// The job's; of one that was submitted before there were projects, the default one.
std::string ProjectOf(const Job& job);

class Projects {
 public:
  // All outlive it.
  Projects(const Options* options, Records* records) : options_(options), records_(records) {}

  void On(const SetProject& event, Transaction& transaction);
  void On(const DeleteProject& event, Transaction& transaction);

  bool any() const { return !records_->projects.empty(); }
  // Of a new job. Empty: there are no projects. InvalidArgument: the spec names one that does not exist, or none while
  // the user is in several. PermissionDenied: the user is not in it.
  absl::StatusOr<std::string> For(const std::string& owner, const JobSpec& spec) const;
  // How many ranks the jobs of a user of the project may run; 0: no limit.
  uint32_t MostRanksOfUser(const std::string& project) const;

  // With the slots that generations hold.
  scheduler::Quotas QuotasNow() const;
  scheduler::Quotas EmptyQuotas() const;  // in which nothing is held
  // Of all jobs that have not ended, by their use up to `now`. What is within a project's nominal quota is taken by
  // running jobs first, those of high priority before others, then by waiting ones in their order; what is too little
  // for one of those, but part of its project's quota, is left for it. `automatic`: the device of waiting jobs that
  // leave the choice, as Cluster::Resolve. REQUIRES: there are projects.
  void SetLoads(std::map<JobId, scheduler::Claim>& claims, Device automatic, SteadyTime now) const;

  // The project's generations used so many slot-seconds; the row is to be written.
  void Use(const JobEntry& job, double slot_seconds, Transaction& transaction);

  // Rows of use that were not written for a while are written as of now, since a restart of the coordinator takes what
  // is stored as what is left then. Called last: it counts the rows of use that jobs have.
  void StoreDecay(Transaction& transaction);
  // When it is due; nullopt: nothing was used.
  std::optional<SteadyTime> decay_due() const;

  // With held slots and use as of now, by name; then what jobs outside of all projects hold and use.
  std::vector<Project> List(SteadyTime now) const;

 private:
  using UseOfUsers = std::map<std::string, Records::Usage>;
  // All of a row is as of the time at which it is written, since no instant can be stored.
  void Decay(UseOfUsers& users, SteadyTime now) const;
  // By project and user, with what running jobs have used since it was last written.
  std::map<std::pair<std::string, std::string>, double> UseNow(SteadyTime now) const;

  const Options* const options_;
  Records* const records_;
};

}  // namespace muster::core
