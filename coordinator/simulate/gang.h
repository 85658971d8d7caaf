// Virtual trainers: processes that load, meet at the rendezvous, train in lockstep, write checkpoints and end. A rank's
// process outlives its worker daemon.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/simulate/world.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

class Gang;
class Replica;

// A rank's progress page (worker/rundir/progress.h). Only one op of a step is modeled: the collective in which all
// ranks meet.
struct Page {
  uint64_t step = 0, issued = 0, completed = 0;
  SteadyTime moved;
};

// One rank's process.
struct Process {
  RankId id;
  uint64_t name = 0;  // of its generation
  WorkerNode* node = nullptr;
  Assignment assignment;
  Gang* gang = nullptr;
  bool alive = true;
  bool frozen = false;
  bool met = false;    // has passed the rendezvous
  bool asked = false;  // asked to write a checkpoint and stop
  Page page;
};

// The processes of one generation.
class Gang {
 public:
  Gang(World* world, const Ran& any);
  ~Gang();

  void Join(const std::shared_ptr<Process>& process);
  // The worker's command and signal.
  void Stop(Process& process, const muster::Stop& stop);
  void Terminate(Process& process);
  // The coordinator is back, perhaps without its memory: the worker sets its ranks' keys again.
  void Resend(const std::shared_ptr<Process>& process);
  void EndProcess(Process& process, RankExit exit);
  // SIGSTOP, at some point before the collective; and SIGCONT.
  void Freeze(Process& process);
  void Thaw(Process& process);

  uint64_t step() const { return step_; }
  const Replica* replica() const { return replica_.get(); }  // null: the job is not one of a run
  bool Intact() const;                                       // every member is there and runs
  const std::map<uint32_t, std::shared_ptr<Process>>& members() const { return members_; }

 private:
  World::CheckpointFolder& folder();
  bool Claim();  // the folder, for the job
  void Load(const std::shared_ptr<Process>& process);
  bool Resume(const Process& process);
  void MayDamage(const std::string& checkpoint);  // the newest published one, which it is about to load
  bool IsCurrent() const;                         // the newest generation of its job on disk, not ended
  void CheckContact() const;
  void Meet(const std::shared_ptr<Process>& process);
  void Rendezvous(const std::shared_ptr<Process>& process, const std::function<void(absl::Status)>& answered);
  void BeginIfAllMet();
  void PlanStep();
  void EndStep();
  bool WaitsForFrozen();
  void FinishStep();
  // Before the first step: with what others have decided, from this fragment on.
  void CatchUp(uint32_t fragment);
  // While an exchange is in progress the ranks make no step, but they do not hang.
  void Exchange(uint32_t fragment, bool offers, std::function<void()> done);
  void WaitForExchange();
  void WriteCheckpoint(bool last);
  void EndAll(RankExit::Cause cause);
  void EndSoon(const std::shared_ptr<Process>& process, absl::Duration latest, RankExit exit);
  const Train& train() const { return members_.begin()->second->assignment.spec().train(); }

  World* const world_;
  const JobId job_;
  const uint64_t generation_;
  const uint64_t name_;
  std::map<uint32_t, std::shared_ptr<Process>> members_;
  absl::Duration step_time_;
  uint64_t step_ = 0;
  bool loads_ = false;  // a rank has looked for the checkpoint
  bool running_ = false;
  bool ending_ = false;  // by an orderly stop
  bool writing_ = false;
  bool waiting_ = false;              // for an exchange
  std::unique_ptr<Replica> replica_;  // null: as replica()
};

class Gangs {
 public:
  explicit Gangs(World* world) : world_(world) {}
  Gang& Of(const Ran& rank);
  const Gang* Find(const JobId& job, uint64_t name) const;  // null: there is none
  // All gangs.
  std::vector<std::shared_ptr<Process>> Living() const;

 private:
  World* const world_;
  std::map<std::pair<JobId, uint64_t>, std::unique_ptr<Gang>> gangs_;  // by job and name
};

}  // namespace muster::simulate
