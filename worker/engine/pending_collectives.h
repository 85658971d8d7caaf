// The issued collectives of a step that were not yet waited for, by stream.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "strategies/schedule/schedule.h"
#include "worker/collectives/group.h"

namespace muster::engine {

// Not thread-safe.
class PendingCollectives {
 public:
  using Then = std::function<void(const collectives::Work&)>;

  // Ops are added in ascending order. `then` is called once, after a successful wait.
  void Add(int32_t op, Stream stream, std::unique_ptr<collectives::Work> work, Then then = nullptr);

  // Waits for `op` and all earlier ops of its stream, as Work::Wait. Returns at once if `op` is not pending. Errors as
  // Work::Wait; the ops from the failed one on stay pending.
  absl::Status Wait(int32_t op, Stream stream);

  bool empty() const;
  // The stream's earliest pending op, if any.
  std::optional<int32_t> First(Stream stream) const;
  // After an error: drops all pending collectives.
  void Abandon();

 private:
  struct Pending {
    int32_t op;
    std::unique_ptr<collectives::Work> work;
    Then then;
  };
  std::array<std::deque<Pending>, kStreams> streams_;  // ascending by op
};

}  // namespace muster::engine
