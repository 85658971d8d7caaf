// The coordinator's process: the daemon's own shell (coordinator/server/shell.h), which can be killed, frozen and
// restarted.
#pragma once

#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "coordinator/server/shell.h"
#include "coordinator/simulate/world.h"

namespace muster::simulate {

class Coordinator {
 public:
  explicit Coordinator(World* world) : world_(world) {}

  void Start();
  // `down`: time until the restart. `silent`: as in a power loss, connections are not reset.
  void Kill(absl::Duration down, bool silent);
  // As Kill, and the next one starts with an older copy of the disk.
  void Restore(Disk::Content disk, Books books, absl::Duration down, bool silent);
  // Kills it at its next write.
  void KillAtWrite(Life::Cut cut, absl::Duration down);
  void Freeze(absl::Duration time);

  bool up() const { return life_ != nullptr && life_->alive(); }
  // Identifies the current run; messages for an earlier run are refused.
  const std::shared_ptr<Life>& life() const { return life_; }
  // The process is down but its machine is up, so connections are refused.
  bool refuses() const { return !up() && !silent_; }
  void Post(std::function<void(server::Turn&)> work);

  // A unary call. `work` runs in a turn and passes the reply to its second argument. The request or the reply may be
  // lost; then `reply` gets UNAVAILABLE after a while.
  using Reply = std::function<void(absl::Status)>;
  void Call(const std::function<void(server::Turn&, const Reply&)>& work, bool reachable, const Reply& reply);

 private:
  void Crashed();
  void Wake(SteadyTime when);
  void DoTurn();

  World* const world_;
  std::shared_ptr<Life> life_;
  std::unique_ptr<server::CorePlans> plans_;  // of this life; outlives its shell
  std::unique_ptr<server::Shell> shell_;
  std::deque<std::function<void(server::Turn&)>> posted_;
  SteadyTime frozen_until_;
  std::optional<SteadyTime> wake_at_;
  uint64_t wakes_ = 0;
  bool silent_ = false;
  absl::Duration down_;  // after a kill at a write
  bool in_turn_ = false;
};

}  // namespace muster::simulate
