// Virtual trainers: processes that load, meet at the rendezvous, train in step with each other, write checkpoints and
// end. A rank's process outlives its worker daemon.
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

// What a rank's progress page says (worker/rundir/progress.h). Of the ops of a step only one is modelled: the
// collective in which all ranks meet.
struct Page {
  uint64_t step = 0, issued = 0, completed = 0;
  SteadyTime moved;
};

// One rank's process.
struct Process {
  RankId id;
  WorkerNode* node = nullptr;
  Assignment assignment;
  Gang* gang = nullptr;
  bool alive = true;
  bool frozen = false;
  bool met = false;    // has been through the rendezvous
  bool asked = false;  // told to write a checkpoint and end
  Page page;
};

// The processes of one generation.
class Gang {
 public:
  Gang(World* world, JobId job, uint64_t generation) : world_(world), job_(std::move(job)), generation_(generation) {}

  void Join(const std::shared_ptr<Process>& process);
  // Command and signal of its worker.
  void Stop(Process& process, const muster::Stop& stop);
  void Terminate(Process& process);
  // The coordinator has come back, perhaps without its memory: the worker sets again what its rank has set.
  void Resend(const std::shared_ptr<Process>& process);
  void Die(Process& process, RankExit exit);
  // SIGSTOP, somewhere before the collective; and SIGCONT.
  void Freeze(Process& process);
  void Thaw(Process& process);

  uint64_t step() const { return step_; }
  const std::map<uint32_t, std::shared_ptr<Process>>& members() const { return members_; }

 private:
  void Load(const std::shared_ptr<Process>& process);
  void Meet(const std::shared_ptr<Process>& process);
  void Rendezvous(const std::shared_ptr<Process>& process, std::function<void(absl::Status)> answered);
  void BeginIfAllMet();
  void PlanStep();
  void EndStep();
  void WriteCheckpoint(bool last);
  void EndAll(RankExit::Cause cause);
  bool Intact() const;  // every member is there and goes on
  void EndSoon(const std::shared_ptr<Process>& process, absl::Duration latest, RankExit exit);
  const Train& train() const { return members_.begin()->second->assignment.spec().train(); }

  World* const world_;
  const JobId job_;
  const uint64_t generation_;
  std::map<uint32_t, std::shared_ptr<Process>> members_;
  absl::Duration step_time_;
  uint64_t step_ = 0;
  bool running_ = false;
  bool ending_ = false;  // in good order
  bool writing_ = false;
};

class Gangs {
 public:
  explicit Gangs(World* world) : world_(world) {}
  Gang& Of(const RankId& rank);
  // Of all gangs.
  std::vector<std::shared_ptr<Process>> Living() const;

 private:
  World* const world_;
  std::map<std::pair<JobId, uint64_t>, std::unique_ptr<Gang>> gangs_;
};

}  // namespace muster::simulate
