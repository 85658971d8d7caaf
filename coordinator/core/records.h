// The jobs and nodes of a Core, what they are found by, and the rows that they are stored as. Private to
// coordinator/core.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/entries.h"
#include "coordinator/core/transaction.h"

namespace muster::core {

std::string JobKey(const JobId& job);
std::string GenerationKey(const JobId& job, uint64_t generation);
std::string NodeKey(const NodeId& node);
std::string RunKey(const std::string& run);
std::string ProjectKey(const std::string& project);
std::string ReservationKey(const std::string& reservation);
std::string UsageKey(const std::string& project);
std::string TemplateKey(const std::string& name);

// ---- The numbers of a job's generations ----
// A number is given once, whatever this store does not know. It was restored from a backup if a later generation was
// seen; then nodes that are not back may have had still later ones, so more are skipped (Options.numbers_skipped).
uint64_t NewestNumber(const Job& job);  // given by this store, or skipped
uint64_t NextNumber(const Job& job);

class Records {
 public:
  // From all rows of a store, without what is only in memory. Errors as Core::Recover.
  absl::Status Load(const std::vector<Row>& rows, SteadyTime now);
  // The rows that the transaction changes.
  void Write(const Transaction& transaction, Outcome& outcome) const;

  // Null: there is none.
  JobEntry* FindJob(const JobId& id);
  const JobEntry* FindJob(const JobId& id) const;
  NodeEntry* FindNode(const NodeId& id);
  const NodeEntry* FindNode(const NodeId& id) const;
  // As well; the transaction then fails with NotFound.
  JobEntry* NeedJob(const JobId& id, Transaction& transaction);
  NodeEntry* NeedNode(const NodeId& id, Transaction& transaction);
  // The job's next generation comes after that number. REQUIRES: it is higher than NewestNumber.
  void SkipNumbers(JobEntry& job, uint64_t to, Transaction& transaction);
  // Each user has request ids of their own: a client may choose them by what it submits, and two users choose alike.
  const JobEntry* FindRequest(const std::string& owner, const std::string& request_id) const;

  // Gives it the next sequence number.
  JobEntry& Add(Job record);
  // With its generations and, if it is the last replica of a run, that. REQUIRES: it has ended.
  void Delete(const JobId& id, Transaction& transaction);

  // Why a new job cannot have the (expanded) checkpoint.path of `spec`; empty: it can.
  std::string FolderConflict(const JobSpec& spec) const;

  const Slot* SlotAt(const NodeId& node, uint32_t index) const;  // null: no such slot
  struct Holder {
    JobId job;
    SlotState state;
  };
  // By slot index. Without stuck slots, and without those of ranks that have exited from a generation that is stopping:
  // it has no more use of them.
  using Holders = std::map<NodeId, std::map<uint32_t, Holder>>;
  Holders SlotHolders() const;

  // How many slots its generation holds, as SlotHolders.
  static uint64_t SlotsHeldBy(const JobEntry& job);

  // Jobs that have not ended, by id. Stays valid while jobs end, not while they are deleted: what looks at every job
  // looks here, since there may be a hundred thousand that have ended.
  std::vector<JobEntry*> Live();
  std::vector<const JobEntry*> Live() const;
  // The job has ended.
  void NoteEnd(const JobId& id, SteadyTime at);
  size_t ended_jobs() const { return ended_by_sequence_.size(); }
  // The one that ended first, and when; null: there is none.
  const std::pair<SteadyTime, JobId>* FirstEnded();
  void KeepReservation(Reservation reservation);
  void EraseReservation(const std::string& name);
  // Newest first: of a sequence number lower than `below` (0: all).
  void ForEnded(uint64_t below, const std::function<bool(const JobEntry& job)>& more) const;

  std::map<JobId, JobEntry> jobs;
  std::map<NodeId, NodeEntry> nodes;
  std::map<std::string, RunEntry> runs;
  std::map<std::string, Project> projects;
  std::map<std::string, Reservation> reservations;
  std::map<std::string, std::shared_ptr<const std::set<NodeId>>> reserved_nodes;  // by reservation; equal ones are one
  struct Usage {
    double slot_seconds = 0;  // decayed to that time
    SteadyTime as_of;
  };
  std::map<std::string, std::map<std::string, Usage>> usage;  // by project and user
  std::map<std::string, Template> templates;

 private:
  absl::Status LoadRow(const Row& row, SteadyTime now);
  absl::Status LoadGeneration(const Row& row);
  void RestoreForgottenNodes();
  absl::Status Check() const;
  JobEntry& Insert(Job record);

  using Request = std::pair<std::string, std::string>;  // the owner, and its id
  static Request RequestOf(const Job& job) { return {job.owner(), job.request_id()}; }
  std::map<Request, JobId> by_request_;
  // The normalized checkpoint.path of every job that has one. In the store of an older Muster jobs may share one.
  std::set<std::pair<std::string, JobId>> folders_;
  std::map<JobId, JobEntry*> live_;
  std::set<std::pair<uint64_t, JobId>> ended_by_sequence_;
  std::deque<std::pair<SteadyTime, JobId>> ended_in_order_;  // some may have been deleted
  uint64_t next_sequence_ = 1;
};

}  // namespace muster::core
