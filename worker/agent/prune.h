// Removes folders of ended ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/pending_call.h"

namespace muster::agent {

struct DoneFolder {
  std::string path;
  uint64_t bytes = 0;
  absl::Time done;
};

struct PruneLimits {
  size_t folders = 256;
  uint64_t bytes = uint64_t{4} << 30;  // on the disk, with all that ranks have left in subfolders
};

// Paths, oldest first; what is left keeps both limits. Pure.
std::vector<std::string> ChoosePruned(std::vector<DoneFolder> folders, const PruneLimits& limits);

// Among the folders of `run` that are marked done.
std::vector<std::string> ChooseDone(const std::string& run, const PruneLimits& limits);

// Counts and removes files on threads, since a rank may leave a million, and one such step at a time. Only renames
// (RankDir::MoveAway) are done on the loop's thread, which decides what is still in use; what a daemon that ends has
// not removed, the first call of the next one does. Used on the loop's thread.
class Pruner {
 public:
  // `in_use`: a rank whose folder stays, though it is marked done. `loop` outlives it.
  Pruner(std::string run, EventLoop* loop, std::function<bool(const RankId&)> in_use);

  // Removes folders until the limits hold, then calls `pruned`, if any. Calls during a removal become one after it.
  void Prune(const PruneLimits& limits, std::function<void()> pruned = nullptr);

 private:
  struct Wanted {
    PruneLimits limits;
    std::vector<std::function<void()>> pruned;
  };

  void Count();
  void Remove(const std::vector<std::string>& paths);
  void Removed(const absl::Status& status);
  // Calls `next` on the loop's thread, unless this object is gone by then.
  std::function<void()> Then(std::function<void()> next);

  const std::string run_;
  EventLoop* const loop_;
  const std::function<bool(const RankId&)> in_use_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  std::optional<Wanted> wanted_, running_;
  std::shared_ptr<PendingCall<std::vector<std::string>>> counting_;  // while it runs
  std::shared_ptr<PendingCall<absl::Status>> removing_;              // likewise
};

}  // namespace muster::agent
