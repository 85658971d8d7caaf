// The queue: which of the waiting jobs starts where. The order is scheduler/queue_order.h's, the slots are
// scheduler/place.h's; here a job waits for its plan, and for larger slots if it does not fit. Private to
// coordinator/core.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "coordinator/core/generations.h"
#include "coordinator/core/preemption.h"
#include "coordinator/core/projects.h"
#include "coordinator/core/time_limits.h"
#include "coordinator/core/wanted_plans.h"
#include "coordinator/scheduler/pass.h"
#include "coordinator/scheduler/quota_pass.h"

namespace muster::core {

class Queue {
 public:
  // All outlive it.
  Queue(const Options* options, Records* records, Plans* plans, Jobs* jobs, Generations* generations,
        const TimeLimits* limits, const Projects* projects, Preemption* preemption)
      : options_(options),
        records_(records),
        plans_(plans),
        jobs_(jobs),
        generations_(generations),
        limits_(limits),
        projects_(projects),
        preemption_(preemption) {}

  // An event comes at that time. Views are of the time of the last event.
  void Note(Now now) { now_ = now; }
  const Now& now() const { return now_; }

  // Places all jobs that can start, and fails those that never can.
  void Schedule(Transaction& transaction);
  // Called after every event: schedules now or in the next tick.
  void ScheduleAfter(const Event& event, Transaction& transaction);
  // In the next tick.
  void ScheduleSoon(SteadyTime now) { schedule_at_ = now; }
  std::optional<SteadyTime> schedule_at() const { return schedule_at_; }
  // When the next event about a job that can never start is due.
  std::optional<SteadyTime> never_starts_at() const;

  std::vector<scheduler::Claim> InOrder() const { return InOrder(Claims()); }  // including jobs in backoff
  struct Waiting {
    JobId job;
    uint32_t position;
    std::string reason;                   // why it waits now
    std::optional<absl::Time> starts_by;  // at the latest, if known
  };
  // In queue order: `only` one job, or all.
  std::vector<Waiting> WaitingJobs(const JobId& only = JobId()) const;

  // How many ranks a running job may have by its project's quota and its user's limits; a multiple of its least group.
  uint64_t MostRanks(const JobEntry& job) const;

  // ---- For those who look for slots for a job ----
  scheduler::Demand DemandOf(const JobEntry& job) const;
  // All that matters about when a job ends: before which heads, and in how many windows of reservations it could run.
  struct EndsBefore {
    scheduler::Pass::Before head = {};
    bool head_of_project = false;
    size_t windows = 0;
    auto operator<=>(const EndsBefore&) const = default;
  };
  // Jobs of one kind ask for the same slots.
  using Kind = std::tuple<std::string, Device, uint32_t, uint32_t, uint32_t, uint32_t, uint64_t, uint64_t, EndsBefore,
                          std::vector<std::string>, std::string>;
  // With its end itself instead of `before`, jobs of many time limits would be as many kinds. None: the job is unlike
  // others, since nodes have refused it or its plan is being made.
  std::optional<Kind> KindOf(const JobEntry& job, EndsBefore before) const;
  // In how many windows of reservations it could still run.
  size_t WindowsOf(const JobEntry& job) const;
  // How long it holds its slots at most, by its time limit or the end of its reservation: from now, or from its start.
  absl::Duration EndsIn(const JobEntry& job) const;
  std::vector<scheduler::NodeView> NodeViews() const { return NodeViews(Claims()); }
  // Whose holders have only their job's id: enough to see what is free.
  std::vector<scheduler::NodeView> NodeViewsWithoutClaims() const { return NodeViewsOf(nullptr); }
  Slots SlotsFor(const scheduler::Decision& decision) const;
  // What is known of the job's plan on those slots.
  enum class PlanState {
    kPending,  // it is being made
    kRefused,  // the ranks do not fit there, or it cannot be made for so few; that is remembered
    kReady,    // Plans::Find has it
    kFailed,   // it cannot be made on all ranks of the job: it never can be
  };
  PlanState PlanOn(JobEntry& job, Plans::Purpose purpose, const scheduler::Decision& decision);

 private:
  // Kinds of which a job got no slots in this pass: later ones get none either, since a pass only takes slots. So a
  // queue of any length costs a pass as much as the kinds in it. The value: it could start on idle nodes; none: its
  // project's quota has no room.
  using Refusals = std::map<Kind, std::optional<bool>>;

  using RunningRanks = std::map<std::string, std::map<std::string, uint64_t>>;  // by user and project
  // What jobs take of their projects' quotas and their users' limits: those that have slots or are about to start. It
  // is summed up once in a pass, since every queued job is compared with it.
  struct Taken {
    scheduler::QuotaPass quotas;
    RunningRanks ranks;
    void Start(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Decision& decision);
  };

  EndsBefore EndOf(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Cluster& cluster,
                   const scheduler::Pass& pass, const scheduler::QuotaPass& quotas) const;

  void RunPass(Transaction& transaction);
  // Pauses a waiting job whose reservation has ended or was deleted, and takes that from it.
  void PauseIfReservationLost(JobEntry& job, Transaction& transaction);
  // Of a waiting job: forgets those of the jobs before it that have completed, and fails it if one cannot any more.
  void LookAtJobsBefore(JobEntry& job, Transaction& transaction);
  // nullopt: it waits, or has failed because it cannot be laid out.
  std::optional<Placement> FindStart(JobEntry& job, const scheduler::Claim& claim, const std::optional<Kind>& kind,
                                     scheduler::Demand demand, scheduler::Pass& pass, Taken& taken, Refusals& refusals,
                                     Transaction& transaction);

  // The places in the queue's order of all jobs that have not ended.
  using ClaimsOfJobs = std::map<JobId, scheduler::Claim>;
  ClaimsOfJobs Claims() const;
  std::vector<scheduler::Claim> InOrder(const ClaimsOfJobs& claims) const;
  std::vector<scheduler::NodeView> NodeViews(const ClaimsOfJobs& claims) const { return NodeViewsOf(&claims); }
  std::vector<scheduler::NodeView> NodeViewsOf(const ClaimsOfJobs* claims) const;  // null: without claims
  Taken TakenOf(const ClaimsOfJobs& claims) const;
  // Whether its project's quota has room for it; with room for some of its ranks, the demand is for those.
  static bool HasRoom(const JobEntry& job, const scheduler::Claim& claim, const scheduler::Cluster& cluster,
                      scheduler::QuotaPass& quotas, scheduler::Demand& demand);
  // As Cluster::Resolve, which needs the claims of those who hold slots.
  Device AutoDevice() const;

  RunningRanks RanksOfUsers() const;
  // How many more ranks the job's user may run, of all or in the project.
  struct UsersRoom {
    uint64_t ranks = scheduler::Quotas::kUnlimited;
    uint32_t limit = 0;      // that leaves no more
    std::string where = {};  // " in project a"
  };
  UsersRoom RoomOfUser(const JobEntry& job, const RunningRanks& running) const;

  // Notes since when the job could not start even on idle nodes; `could`: it can.
  void NoteHope(const JobId& job, bool could, SteadyTime now);
  // Reports jobs that could not start for so long (Options::never_starts_after), each once.
  void ReportHopeless(const scheduler::Cluster& cluster, Transaction& transaction);

  const Options* const options_;
  Records* const records_;
  Plans* const plans_;
  Jobs* const jobs_;
  Generations* const generations_;
  const TimeLimits* const limits_;
  const Projects* const projects_;
  Preemption* const preemption_;
  Now now_{};
  std::optional<SteadyTime> schedule_at_;  // when to run the next scheduling pass
  // Of queued jobs that could not start even on idle nodes: when to report that; nullopt: reported.
  std::map<JobId, std::optional<SteadyTime>> hopeless_;
  bool settled_ = false;  // there was a scheduling pass
};

}  // namespace muster::core
