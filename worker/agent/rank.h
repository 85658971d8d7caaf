// One rank on this node: its folder, its processes, its termination, and its exit.
//
// Used on the loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "proto/worker.pb.h"
#include "worker/agent/feed.h"
#include "worker/agent/rank_process.h"
#include "worker/agent/reconcile.h"
#include "worker/agent/stall_detector.h"
#include "worker/agent/trainer_server.h"
#include "worker/rundir/process_table.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

// The exit to report to the coordinator: the shim's record, refined by the facts that the worker knows. Pure.
// `stop_requested`: the rank was asked to stop, or was no longer desired.
RankExit RefineExit(RankExit exit, const Facts& facts, bool stop_requested);

class Rank {
 public:
  explicit Rank(rundir::RankDir dir);

  // Adopts the folder of an earlier daemon. False: no trainer ever ran in it; the rank may be started there.
  bool Adopt(Now now);
  // Makes the folder, if it is not there, and spawns the shim. A failure is this rank's end (SPAWN_FAILED).
  void Start(const rundir::Start& start, const std::string& step_binary, Now now);
  // In place of Start: the job may not run here, however often it is tried (REFUSED).
  void Refuse(const absl::Status& why, Now now);

  const RankId& id() const { return dir_.rank(); }
  const rundir::RankDir& dir() const { return dir_; }
  // A descriptor that becomes readable when the shim ends; -1: no shim.
  int fd() const { return process_ == nullptr ? -1 : process_->fd(); }
  bool ended() const { return exit_.has_value(); }
  // It has ended, as far as its job goes, but what it holds is not free: "process 4711 (state D)". Empty: it is.
  std::string stuck() const;
  Termination termination() const { return termination_; }
  LocalRank AsLocal() const;

  // The shim's descriptor became readable. The rank ends when all its processes are gone; those that are not are killed
  // again and again, and after a few seconds it ends as stuck().
  void HandleShimEnd(Now now);

  // ---- Termination. Each call advances termination() at least that far; Tick enforces the deadlines. ----
  void Stop(const muster::Stop& stop, Now now);
  // Kills it at once: its results are no longer needed.
  void Kill(Now now);
  // Reads the progress page. Sends SIGTERM if a stop was requested and the trainer is not attached; SIGKILL at the
  // deadline.
  void Tick(Now now);

  // ---- The trainer's command stream. ----
  void Attach(std::shared_ptr<CommandStream> commands);
  void Detach(const CommandStream* commands);
  // Takes the newest assignment, and forwards it if it has changed. `table`: the table that it names; null: it names
  // none, or the table has not arrived. Until it arrives, a trainer that attaches is refused (Unavailable). The table
  // is sent with the first assignment of a stream.
  void Assign(const Assignment& assignment, std::shared_ptr<const PartitionTable> table);
  void ReportStep(uint64_t step);

  Feed& feed() { return *feed_; }
  // The state to report. `stop_desired`: the desired state asks it to stop. `forgotten`: the desired state no longer
  // holds it. EXITED is reported once the coordinator has acknowledged all records, and the output or a few seconds
  // have passed, or if the rank is forgotten. A stall of a second or more is reported unless the rank is stopping.
  ObservedRank Observe(bool stop_desired, bool forgotten, Now now) const;
  // The last state reported on this stream; none: nothing was reported.
  std::optional<ObservedRank> observed;
  SteadyTime observed_at;

 private:
  void EndWith(RankExit exit, Now now);
  // With this exit, once its processes are gone or stuck.
  void Conclude(RankExit exit, Now now);
  void LookAtRemains(Now now);
  bool HasTable() const { return assignment_->table_sha256().empty() || table_ != nullptr; }
  void SendAssignment(bool with_table);

  const rundir::RankDir dir_;
  std::optional<Feed> feed_;                     // always there
  std::optional<StallDetector> stall_detector_;  // likewise
  std::unique_ptr<RankProcess> process_;
  std::optional<RankExit> exit_;
  SteadyTime ended_at_;
  std::optional<RankExit> concluding_;           // its exit, as soon as it has ended
  std::vector<rundir::ProcessRow> remains_;      // that were killed and are still there
  SteadyTime remain_since_, remains_looked_at_;  // while there are any
  std::optional<std::vector<uint32_t>> slots_;   // from its folder; none: unknown
  bool trainer_ran_ = false;
  uint64_t reported_step_ = 0;

  Termination termination_ = Termination::kNone;
  muster::Stop stop_;
  SteadyTime terminate_at_;
  SteadyTime kill_at_;
  bool terminated_ = false;
  bool killed_ = false;
  bool destroyed_ = false;

  std::shared_ptr<CommandStream> commands_;
  std::optional<Assignment> assignment_;
  std::shared_ptr<const PartitionTable> table_;
};

}  // namespace muster::agent
