// A machine with a worker daemon. The daemon's decisions are the real ones (worker/agent/reconcile.h); its protocol
// follows worker/agent/agent.cc. State that the daemon keeps in files outlives it here: its ranks' folders, and the
// last desired state.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "coordinator/simulate/connection.h"
#include "coordinator/simulate/gang.h"
#include "coordinator/simulate/world.h"
#include "worker/agent/reconcile.h"

namespace muster::simulate {

class WorkerNode {
 public:
  WorkerNode(World* world, std::string id, uint32_t slots) : world_(world), id_(std::move(id)), slots_(slots) {}

  const std::string& id() const { return id_; }
  uint32_t slots() const { return slots_; }
  size_t living() const;      // processes
  size_t unfinished() const;  // ranks that the daemon has not finished handling

  // ---- Faults. ----
  void StartDaemon();
  void KillDaemon();
  void FreezeDaemon(absl::Duration time);
  // Every process is killed; `folders_lost`: the folders were in memory. The daemon restarts after `down`.
  void Reboot(absl::Duration down, bool folders_lost);
  // The node never returns.
  void Destroy();
  bool destroyed() const { return destroyed_; }
  void SetRoute(Route route);
  // Ranks that start here refuse their job, as without a mount.
  void SetLacking(bool lacking) { lacking_ = lacking; }
  bool lacking() const { return lacking_; }
  // Processes that end until `time` from now are gone only then: killed, they wait in the kernel.
  void HoldEnds(absl::Duration time);
  void BreakStream();
  // SIGTERM: the daemon stops its ranks and ends; another one starts after `down`.
  void Leave(absl::Duration down);

  // ---- The network. ----
  void CoordinatorCrashed(bool silent);
  bool Listens() const;
  bool reaches_coordinator() const { return route_.both(); }
  SteadyTime contact() const { return contact_; }
  // `restores`: as the judge counted them when it was sent.
  void Received(Connection* connection, const CoordinatorMessage& message, uint64_t restores);
  void Ended(Connection* connection, const absl::Status& why);

  // ---- Its processes. ----
  void Append(const RankId& rank, Record record);
  void ReportStep(const RankId& rank, uint64_t step);
  void ProcessEnded(const RankId& rank, RankExit exit);

 private:
  // State of one rank in files.
  struct Folder {
    std::vector<uint32_t> slots;
    std::vector<Record> outbox;
    uint64_t removed = 0;  // of its records: they were acknowledged
    // Of its records, also by coordinators whose history a restore has ended; and how many of them by such alone.
    uint64_t ever_acknowledged = 0, lost = 0;
    uint64_t restores = 0;  // when it was acknowledged last
    std::shared_ptr<Process> process;
    std::optional<RankExit> exit;
    bool done = false;
    SteadyTime stuck_until;
  };
  // State of one rank in the daemon's memory.
  struct Local {
    agent::Termination termination = agent::Termination::kNone;
    uint64_t sent = 0;
    uint64_t acknowledged = 0;
    uint64_t step = 0;
    std::optional<ObservedRank> observed;
  };
  struct Daemon {
    std::string incarnation;
    std::shared_ptr<Connection> connection;
    bool welcomed = false;
    bool fresh = false;
    bool leaving = false;
    uint64_t term = 0;
    Desired desired;
    uint64_t restores = 0;  // before it was sent
    std::map<RankId, Local> ranks;
    std::string reported_stuck;
    SteadyTime answered;
    SteadyTime last_heartbeat;
    SteadyTime frozen_until;
    SteadyTime started;
  };

  void Timer();
  void Call();
  void CallLater(absl::Duration delay);
  void Send(WorkerMessage message);
  void ApplyDesired(const Desired& desired);
  void AddLocal(const RankId& rank);
  void Retain(const RankId& rank, const Assignment& assignment);
  void KeepLease();
  void Reconcile();
  void Carry(const agent::Operation& operation);
  void StartRank(const RankId& rank);
  void StopRank(const RankId& rank);
  void KillAt(const RankId& rank, absl::Duration delay);
  void SendNews(bool full);
  void SendObserved(bool full);
  void ReportAbsent();
  bool IsStuck(const Folder& folder) const { return world_->agenda.now() < folder.stuck_until; }
  ObservedRank Observe(const RankId& rank) const;
  // How long a running rank has stalled; zero: it makes progress, as far as this daemon has seen.
  absl::Duration StalledFor(const Process& process) const;
  bool AnyStalled() const;
  const DesiredRank* DesiredOf(const RankId& rank) const;
  void CheckOrphans();
  // Now, or when the daemon is no longer frozen; nothing if it has ended by then.
  void Soon(std::function<void()> work);

  World* const world_;
  const std::string id_;
  const uint32_t slots_;
  Route route_;
  bool destroyed_ = false;
  bool lacking_ = false;
  SteadyTime holds_until_;
  uint64_t boot_ = 1;
  uint64_t incarnations_ = 0;
  bool timer_runs_ = false;
  std::map<RankId, Folder> folders_;
  std::optional<CoordinatorMessage> stored_;
  SteadyTime lease_;
  SteadyTime contact_;  // the coordinator's last message
  std::unique_ptr<Daemon> daemon_;
  std::vector<std::weak_ptr<Connection>> connections_;
};

}  // namespace muster::simulate
