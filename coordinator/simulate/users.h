// The users of the cluster: users who submit jobs and change their minds, an administrator, and readers of the stream.
// Their calls and replies may get lost; they retry until they get a reply.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/simulate/coordinator.h"
#include "coordinator/simulate/world.h"

namespace muster::simulate {

class User {
 public:
  User(World* world, std::string request, JobSpec spec, std::string name = "somebody")
      : world_(world), request_(std::move(request)), spec_(std::move(spec)), name_(std::move(name)) {}

  // With another checkpoint.path if that one is another job's. Waits until the jobs that it comes after are accepted,
  // and does without them if one can no longer complete.
  void Submit();
  // Before Submit: its job comes after theirs, which outlive it.
  void ComeAfter(const std::vector<const User*>& users) { after_ = users; }
  // Requests about the job, once each; they do nothing before it is accepted.
  void Pause();
  void Resume();
  void Cancel();
  void Delete();  // only if it has ended
  // After a restore: the store may not know the job.
  void SubmitIfLost();

  const JobId& job() const { return job_; }

 private:
  // The job was refused, since it may not use the reservation that its spec names. It tries again for a while, since
  // that may be set later, and then does without.
  void SubmitLaterOrOutside();
  // False: one of the jobs that it comes after has no id yet.
  bool NameJobsBefore();
  template <typename Event>
  void Change(const char* what, std::function<void()> accepted = nullptr);

  World* const world_;
  std::string request_;
  JobSpec spec_;
  const std::string name_;
  std::vector<const User*> after_;
  JobId job_;  // once it is accepted
  uint64_t tries_ = 0;
};

// Resumes all jobs, now and then, so that none stays paused for ever: also those that their users no longer follow,
// since an older backup brought them back.
void ResumeInTheEnd(World* world);

// Drains or undrains; retries until it gets a reply.
void Drain(World* world, const std::string& node, bool drain);

// Sets a project; retries until it gets a reply.
void SetProject(World* world, const Project& project);

// A reservation from so long after it is set, for so long; retries until it gets a reply. It is refused where a node
// has not joined, or is in another one at that time.
void SetReservation(World* world, Reservation reservation, absl::Duration begins_in, absl::Duration lasts);
// Retries likewise. It is refused while jobs run in it.
void DeleteReservation(World* world, const std::string& name);

// Follows all events from the first one, across restarts of the coordinator and its own disconnects.
class Reader {
 public:
  explicit Reader(World* world) : world_(world) {}
  void Start();
  // Breaks its stream.
  void Disconnect();
  // From the beginning, since a restored store may refuse the cursor.
  void StartOver();
  size_t position() const { return position_; }

 private:
  void Open();
  void Next();
  void Got(const std::shared_ptr<Life>& life, uint64_t opened, const server::WatchPage& page);

  World* const world_;
  std::string cursor_;
  size_t position_ = 0;  // number of events read
  uint64_t opened_ = 0;
  std::shared_ptr<server::Watch> watch_;
  std::shared_ptr<Life> life_;
};

}  // namespace muster::simulate
