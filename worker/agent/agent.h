// The worker daemon. Reconciles the ranks on this node with the coordinator's desired state, and forwards the trainers'
// records and logs to the coordinator.
//
//   Agent agent(options, node, &loop, clock);
//   status = agent.Start();
//   loop.Run();  // until the agent stops the loop: agent.result()
//
// Used on the loop's thread only.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "common/rpc/rpc.h"
#include "proto/worker.pb.h"
#include "worker/agent/command_line.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/node_use.h"
#include "worker/agent/preflight.h"
#include "worker/agent/prune.h"
#include "worker/agent/rank.h"
#include "worker/agent/rank_checks.h"
#include "worker/agent/rank_users.h"
#include "worker/agent/relay.h"
#include "worker/agent/stream.h"
#include "worker/agent/tables.h"
#include "worker/agent/trainer_server.h"
#include "worker/agent/worker_page.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

struct AgentOptions {
  std::string coordinator;  // address
  std::string token;
  rpc::Security security;
  std::string state_dir;  // both absolute, private and locked
  std::string run_dir;
  std::string step_binary;
  std::string trainer;
  std::string exec;                            // muster-exec; empty: this node runs no exec jobs
  std::vector<std::string> container_command;  // how it runs images (worker/exec/container.h); empty: it does not
  std::string host = "127.0.0.1";              // where ranks of other nodes reach the ranks of this one
  std::string interface;                       // the network interface that has `host`; empty: unknown, or loopback
  std::vector<std::string> data_roots, checkpoint_roots;  // below which jobs' paths must lie; none: anywhere
  std::vector<std::string> plugin_roots;         // below which jobs' libraries may lie; none: no library is loaded
  RankUsers users;                               // whom ranks run as
  std::map<std::string, std::string> variables;  // of every rank on this node (common/rank_variables.h)
  bool handover = false;                         // Finish leaves the ranks running for the next daemon
  absl::Duration drain_deadline = absl::Seconds(30);
  absl::Duration kill_grace = absl::Seconds(10);
  // How long ranks run on while this daemon lives and the coordinator cannot be reached; none: its orphan grace.
  std::optional<absl::Duration> outage_grace = std::nullopt;
  PreflightKind preflight = PreflightKind::kOff;
};

class Agent final : public TrainerHost {
 public:
  // `node`: with its slots. `loop` outlives the agent.
  Agent(AgentOptions options, Node node, EventLoop* loop);
  ~Agent() override;

  // Adopts the ranks of an earlier daemon, serves trainers, and keeps connecting to the coordinator.
  absl::Status Start();
  // On SIGTERM: drains within drain_deadline, or leaves the ranks running (handover); then stops the loop.
  void Finish();
  // Once the loop has stopped. FailedPrecondition: the coordinator's version does not fit this build.
  const absl::Status& result() const { return result_; }
  WorkerView View() const;
  // Uses a new certificate for new streams and calls. Open streams continue.
  void UseSecurity(const rpc::Security& security);

  // ---- TrainerHost ----
  void Attached(const RankId& rank, std::shared_ptr<CommandStream> commands) override;
  void Detached(const RankId& rank, const CommandStream* commands) override;
  uint64_t Reported(const RankId& rank, uint64_t step, uint64_t sequence) override;
  void Set(const SetRequest& request, ValueCallback done) override;
  void Get(const GetRequest& request, ValueCallback done) override;
  std::function<void()> Sync(const SyncRequest& request, std::function<void(absl::StatusOr<SyncReply>)> done) override;
  std::function<void()> Wait(const WaitRequest& request, ValueCallback done) override;

 private:
  enum class Contact { kNone, kCalling, kWelcomed };

  // ---- agent.cc ----
  void AdoptAll();
  void LoadDesired();
  void Tick();
  void ScheduleTick();
  void AddRank(std::unique_ptr<Rank> rank);
  void Watch(Rank& rank);
  void ApplyDesired(const Desired& desired);
  void TakeBackDone();
  void RemoveUnspawned();
  void Reconcile();
  void Carry(const Operation& operation);
  // Unless it waits for its table, or for an answer about it; the next Reconcile asks again.
  void StartRank(const RankId& id);
  enum class Room { kYes, kNo, kLater };
  // Whether the daemon's own folders can take a rank's files. If not, removes what ended ranks have left (kLater: there
  // may be room soon, at Cleared at the latest); where that does not help, reports that this machine takes no ranks.
  // `write`: tries it.
  Room LookForRoom(bool write);
  // True: the rank waits, or is reported as one that never starts.
  bool LacksRoom(const RankId& id, bool write);
  void Cleared();
  // Whether programs of users may run here.
  absl::Status CheckProgram(const Assignment& assignment) const;
  // None: not known yet.
  std::optional<RankChecks::Answer> MayStart(const RankId& id, const Assignment& assignment);
  void StopRank(Rank& rank);
  void FinishRank(const RankId& id);
  // Says goodbye to the coordinator, then stops the loop.
  void Stop();
  const DesiredRank* DesiredOf(const RankId& id) const;
  Assignment AssignmentOf(const DesiredRank& desired) const;
  void AssignAll();  // sends each local rank its newest assignment
  // Keeps the tables of all desired ranks.
  void KeepTables();
  bool HasTable(const DesiredRank& desired) const;

  // ---- agent_contact.cc: the coordinator's side ----
  void Call();
  void CallLater(absl::Duration delay);
  void Received(const CoordinatorMessage& message);
  void Welcomed(const Welcome& welcome);
  void Ended(const absl::Status& why);
  // The coordinator has another store than this worker's ranks. They go on, until an operator chooses.
  void MeetForeignStore(const absl::Status& why);
  void FollowStoreChoice();
  void BelongTo(const std::string& store_id);
  void SendObserved(bool full);
  // Checks the machine, unless that is being done, and reports what it finds.
  void CheckAgain();
  void Checked(Preflight found);
  std::vector<uint32_t> SlotsOf(const Rank& rank) const;
  // Reports ranks that are to stop but never ran here as stopped.
  void ReportAbsent();
  // Sends changed states, records and logs, as far as the windows allow. `full`: every rank's state.
  void SendUpdates(bool full = false);
  void SendUpdatesLater();  // posts one SendUpdates
  void Heartbeat();
  // Ranks end when the lease has not been renewed for the orphan grace.
  void RenewLease();
  void Send(WorkerMessage message);

  const AgentOptions options_;
  const Node node_;
  EventLoop* const loop_;
  StartContext start_context_;
  absl::Status result_;

  std::unique_ptr<rundir::Lease> lease_;
  std::unique_ptr<TrainerServer> trainers_;
  std::unique_ptr<CoordinatorStream> stream_;
  std::unique_ptr<Relay> relay_;
  std::unique_ptr<Tables> tables_;
  std::unique_ptr<Preflights> preflights_;
  RankChecks checks_;
  Pruner pruner_;
  std::unique_ptr<NodeUseWatch> use_;
  Preflight preflight_;  // the newest; without a time: none yet

  std::map<RankId, std::unique_ptr<Rank>> ranks_;  // unfinished ranks
  std::map<RankId, std::string> not_started_;      // desired ranks that never start, and why
  SteadyTime folders_checked_;
  std::optional<SteadyTime> clearing_since_;  // while all folders of ended ranks are being removed
  std::optional<SteadyTime> cleared_at_;
  Desired desired_;
  bool fresh_ = false;          // desired_ was received by this daemon, not read from disk
  uint64_t term_ = 0;           // highest seen
  std::string store_id_;        // that the ranks belong to; empty: none yet
  bool foreign_store_ = false;  // the coordinator has another one

  Contact contact_ = Contact::kNone;
  SteadyTime answered_;             // last message of, or call to, the coordinator
  SteadyTime last_contact_;         // last message from the coordinator; else the start
  uint64_t log_bytes_dropped_ = 0;  // of finished ranks
  absl::Duration detection_ = absl::Seconds(10);
  uint64_t heartbeats_ = 0;
  SteadyTime last_heartbeat_;
  std::string reported_stuck_;  // the ranks that were reported as stuck
  std::string last_complaint_;  // logged once, not at each attempt
  bool finishing_ = false;
  bool leaving_ = false;
  bool update_posted_ = false;
  bool check_posted_ = false;  // after a preflight that found a problem
  SteadyTime finish_by_;
};

}  // namespace muster::agent
