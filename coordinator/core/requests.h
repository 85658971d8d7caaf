// What users ask for: submit, cancel, pause, resume, delete, trace, checkpoint, templates. Private to coordinator/core.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "coordinator/core/projects.h"
#include "coordinator/core/queue.h"

namespace muster::core {

class Requests {
 public:
  // All outlive it.
  Requests(const Options* options, Records* records, Plans* plans, Jobs* jobs, Generations* generations, Queue* queue,
           const Projects* projects)
      : options_(options),
        records_(records),
        plans_(plans),
        jobs_(jobs),
        generations_(generations),
        queue_(queue),
        projects_(projects) {}

  void On(const SubmitJob& event, Transaction& transaction);
  void On(const CancelJob& event, Transaction& transaction);
  void On(const PauseJob& event, Transaction& transaction);
  void On(const ResumeJob& event, Transaction& transaction);
  void On(const DeleteJob& event, Transaction& transaction);
  void On(const LabelJob& event, Transaction& transaction);
  void On(const NoteJob& event, Transaction& transaction);
  void On(const TraceJob& event, Transaction& transaction);
  void On(const CheckpointJob& event, Transaction& transaction);
  void On(const SetTemplate& event, Transaction& transaction);
  void On(const DeleteTemplate& event, Transaction& transaction);

  // Called after every event: deletes jobs that ended too long ago, or beyond the number that is kept.
  void PruneEnded(Transaction& transaction);

 private:
  absl::Status CheckAfter(const JobSpec& spec) const;
  // If this job has completed: those that come after it and have not noted that, as a paused one does not. They would
  // fail without it, so they note it before it is deleted.
  std::vector<JobEntry*> StillWaitingFor(const JobEntry& job) const;
  static void NoteCompleted(const JobId& id, JobEntry& waiting, Transaction& transaction);
  // What a user has in the queue.
  struct Queued {
    uint64_t jobs = 0;
    std::set<std::string> selective_demands;  // different ones with a node_selector
  };
  absl::Status CheckUser(const SubmitJob& event, Queued own, SteadyTime now);
  // False: the user has had as many within the last minute as are allowed. Counts this one if not.
  using Calls = std::map<std::string, std::deque<SteadyTime>>;  // by user, within the last minute
  bool Count(const std::string& user, SteadyTime now, Calls& calls) const;
  // Of labels, notes and templates: each has an entry in the audit log, and pushes an older one out of it.
  absl::Status CheckChanges(const std::string& user, SteadyTime now);
  void Add(const SubmitJob& event, const JobId& id, const std::string& request_id, JobSpec spec,
           const std::string& project, Transaction& transaction);

  const Options* const options_;
  Records* const records_;
  Plans* const plans_;
  Jobs* const jobs_;
  Generations* const generations_;
  Queue* const queue_;
  const Projects* const projects_;
  Calls submits_, changes_;
};

}  // namespace muster::core
