// The coordinator's virtual disk, behind the interfaces of coordinator/store. What was committed stays, whatever
// happens to the process; a process that is dead writes nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/simulate/judge.h"
#include "coordinator/store/history.h"
#include "coordinator/store/state.h"

namespace muster::simulate {

// One run of the coordinator's process. A killed one goes on computing in the simulation, but nothing that it does
// reaches the disk or the network any more: so it can be killed between any two of its effects.
class Life {
 public:
  enum class Cut { kNone, kBefore, kAfter };

  // `died` is called when it dies at a write.
  explicit Life(std::function<void()> died) : died_(std::move(died)) {}

  bool alive() const { return alive_; }
  void Die() { alive_ = false; }
  // Dies at its next write: with the write lost, or with it on disk and nothing that should follow it done.
  void DieAtNextWrite(Cut cut) { cut_ = cut; }

  // False: the write is not to happen.
  bool BeginWrite() {
    if (alive_ && cut_ == Cut::kBefore) End();
    return alive_;
  }
  void EndWrite() {
    if (alive_ && cut_ == Cut::kAfter) End();
  }

 private:
  void End() {
    alive_ = false;
    died_();
  }
  const std::function<void()> died_;
  bool alive_ = true;
  Cut cut_ = Cut::kNone;
};

class Disk {
 public:
  explicit Disk(Judge* judge) : judge_(judge) {}

  // The disk outlives the stores.
  std::unique_ptr<store::StateStore> OpenState(std::shared_ptr<Life> life);
  std::unique_ptr<store::HistoryStore> OpenHistory(std::shared_ptr<Life> life);

 private:
  friend class VirtualState;
  friend class VirtualHistory;

  Judge* const judge_;
  std::map<std::string, std::string, std::less<>> rows_;
  uint64_t term_ = 0;
  std::map<JobId, std::map<uint64_t, MetricPoint>> points_;  // by sequence
  std::map<RankId, store::Acknowledged> acknowledged_;
  uint64_t last_sequence_ = 0;
};

}  // namespace muster::simulate
