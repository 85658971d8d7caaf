// Checks this machine before it takes ranks, and after faults: folders that can be written and have room, and the
// devices and collectives that ranks use, in a process of the trainer's program (worker/trainer/preflight.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/clock.h"
#include "proto/job.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/pending_call.h"

namespace muster::agent {

enum class PreflightKind {
  kFull,
  kFolders,  // without the devices: no process is started
  kOff,
};

struct PreflightOptions {
  PreflightKind kind = PreflightKind::kOff;
  std::string trainer;
  std::string host;
  std::string state_dir, run_dir;
  std::vector<std::string> data_roots, checkpoint_roots;
  absl::Duration patience = absl::Seconds(90);  // for each check
  std::shared_ptr<const Clock> clock = std::make_shared<RealClock>();
};

// By the name of the check and the folder.
using FolderChecks = std::map<std::pair<std::string, std::string>, std::shared_ptr<PendingCall<PreflightCheck>>>;

// `free`: slots without a rank; only their devices are checked, since a rank's memory is its own. Returns when all is
// checked or has not answered in time, or when descriptor `cancelled` (-1: none) is readable. `unanswered` keeps the
// checks of folders that have not returned for the next call, which waits for the same ones. The speed of a GPU is
// compared with that of its equals here, and with the best that it has had, which is kept in the state folder: less
// than half is a problem. That of CPUs is only shown, because it depends on what else runs.
Preflight CheckMachine(const PreflightOptions& options, const std::vector<Slot>& free, int cancelled = -1,
                       FolderChecks* unanswered = nullptr);

// The checks of the daemon's own folders alone, where ranks have their files. `write`: also whether they can be
// written.
Preflight CheckOwnFolders(const std::string& state_dir, const std::string& run_dir, bool write);

// Runs CheckMachine on a thread of its own. Used on the loop's thread.
class Preflights {
 public:
  // `done` is called on the loop's thread. `loop` outlives it.
  Preflights(PreflightOptions options, EventLoop* loop, std::function<void(Preflight)> done);
  ~Preflights();

  bool on() const { return options_.kind != PreflightKind::kOff; }
  bool busy() const { return thread_.joinable(); }
  // REQUIRES: not busy.
  void Start(uint64_t number, std::vector<Slot> free);

 private:
  const PreflightOptions options_;
  EventLoop* const loop_;
  const std::function<void(Preflight)> done_;
  const int cancel_;         // an eventfd
  FolderChecks unanswered_;  // the thread's
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::thread thread_;
};

}  // namespace muster::agent
