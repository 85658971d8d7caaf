// One rank on this node: its folder, its processes, what it was told, and what is known of its end.
//
// Of the loop's thread.
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
#include "worker/rundir/rundir.h"

namespace muster::agent {

// Pure. What the coordinator is told of an end: the shim's record, refined by what only the worker knows. `told`: the
// rank was told to stop or was not wanted any more.
RankExit RefineExit(RankExit exit, const Facts& facts, bool told);

class Rank {
 public:
  explicit Rank(rundir::RankDir dir);

  // From a folder that an earlier daemon left. False: no trainer ever ran in it; the rank may be started there.
  bool Adopt();
  // Makes the folder, if it is not there, and spawns the shim. A failure is this rank's end (SPAWN_FAILED).
  void Start(const rundir::Start& start, const std::string& step_binary, Now now);

  const RankId& id() const { return dir_.rank(); }
  const rundir::RankDir& dir() const { return dir_; }
  // Of the living shim, readable when it ends; -1: none.
  int fd() const { return process_ == nullptr ? -1 : process_->fd(); }
  bool ended() const { return exit_.has_value(); }
  Told told() const { return told_; }
  LocalRank AsLocal() const;

  // The shim's descriptor became readable.
  void HandleShimEnd(Now now);

  // ---- Telling it to end. Each leaves told() at least so far; deadlines run in Tick. ----
  void Stop(const muster::Stop& stop, Now now);
  // At once: nobody would take what it could still save.
  void Kill(Now now);
  // Looks at the progress page. SIGTERM when it is told to stop and its trainer is not attached; SIGKILL at the
  // deadline.
  void Tick(Now now);

  // ---- The trainer's command stream. ----
  void Attach(std::shared_ptr<CommandStream> commands);
  void Detach(const CommandStream* commands);
  // Newest assignment; sent on when it has changed. `table`: that which it names; null: it names none, or the table is
  // not there yet; until it is, a trainer that attaches is sent away. It goes with the first assignment of a stream.
  void Assign(const Assignment& assignment, std::shared_ptr<const PartitionTable> table);
  void ReportStep(uint64_t step);

  Feed& feed() { return feed_; }
  // `unwanted`: the coordinator wants it to stop, or to be gone. EXITED only once the coordinator has all its records,
  // and its output or a few seconds to take it, except when nobody wants it any more (`forgotten`). How long it stands
  // still is told of a rank that is to go on, from a second on.
  ObservedRank Observe(bool unwanted, bool forgotten, Now now) const;
  // What the coordinator was last told on this stream; none: nothing.
  std::optional<ObservedRank> observed;
  SteadyTime observed_at;

 private:
  void EndWith(RankExit exit, Now now);
  bool HasTable() const { return assignment_->table_sha256().empty() || table_ != nullptr; }
  void SendAssignment(bool with_table);

  const rundir::RankDir dir_;
  Feed feed_;
  StallDetector stall_detector_;
  std::unique_ptr<RankProcess> process_;
  std::optional<RankExit> exit_;
  SteadyTime ended_at_;
  bool trainer_ran_ = false;
  uint64_t reported_step_ = 0;

  Told told_ = Told::kNothing;
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
