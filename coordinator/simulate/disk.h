// The coordinator's virtual disk; implements the interfaces of coordinator/store. Committed data survives the process,
// and a killed process writes nothing.
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

// One run of the coordinator's process. After a kill the simulation still executes its code, but none of its effects
// reach the disk or the network. So it can be killed between any two effects.
class Life {
 public:
  enum class Cut { kNone, kBefore, kAfter };

  // `crashed` is called when a write kills it.
  explicit Life(std::function<void()> crashed) : crashed_(std::move(crashed)) {}

  bool alive() const { return alive_; }
  void Kill() { alive_ = false; }
  // Crashes at its next write: either the write is lost, or it is on disk and nothing after it happens.
  void CrashAtNextWrite(Cut cut) { cut_ = cut; }

  // False: the write must not happen.
  bool BeginWrite() {
    if (alive_ && cut_ == Cut::kBefore) End();
    return alive_;
  }
  void EndWrite() {
    if (alive_ && cut_ == Cut::kAfter) End();
  }
  // The write failed, and the process ends itself.
  void Abort() {
    if (alive_) End();
  }

 private:
  void End() {
    alive_ = false;
    crashed_();
  }
  const std::function<void()> crashed_;
  bool alive_ = true;
  Cut cut_ = Cut::kNone;
};

class Disk {
 public:
  // Both stores, at one moment.
  struct Content {
    std::map<std::string, std::string, std::less<>> rows;
    uint64_t term = 0;
    std::map<JobId, std::map<uint64_t, MetricPoint>> points;  // by sequence
    std::map<RankId, store::Acknowledged> acknowledged;
    uint64_t last_sequence = 0;
  };

  explicit Disk(Judge* judge) : judge_(judge) {}

  // As `muster backup`, of the history too. Restore replaces what is there. REQUIRES for it: no process writes.
  Content Copy() const {
    Content copy = content_;
    copy.rows[store::kCopyKey] = "1";
    return copy;
  }
  void Restore(Content content) { content_ = std::move(content); }

  // Full: the history takes nothing, and the state only what was kept for it.
  void Fill(uint64_t reserve_bytes) { full_ = true, reserve_bytes_ = reserve_bytes; }
  void Free() { full_ = false; }
  bool full() const { return full_; }
  // Whether a coordinator can start: it stores its term first.
  bool HasRoom() const { return !full_ || reserve_bytes_ > 0; }

  // The disk outlives the stores.
  std::unique_ptr<store::StateStore> OpenState(std::shared_ptr<Life> life);
  std::unique_ptr<store::HistoryStore> OpenHistory(std::shared_ptr<Life> life);

 private:
  friend class VirtualState;
  friend class VirtualHistory;

  // False: there is no room for it.
  bool Take(const std::vector<store::ChangeGroup>& groups);

  Judge* const judge_;
  Content content_;
  bool full_ = false;
  uint64_t reserve_bytes_ = 0;
};

}  // namespace muster::simulate
