// The collectives of a step that were issued and not yet waited for, by stream.
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

// Of one thread.
class PendingCollectives {
 public:
  using Then = std::function<void(const collectives::Work&)>;

  // `op` is later than those added before. `then` is called once, when it is waited for and has not failed.
  void Add(int32_t op, Stream stream, std::unique_ptr<collectives::Work> work, Then then = nullptr);

  // Until `op` and all before it on its stream are done, as Work::Wait. Nothing if it is not in flight. Errors as a
  // Work's; what is behind the failed one stays.
  absl::Status Wait(int32_t op, Stream stream);

  bool empty() const;
  // Of the stream, not yet waited for. None: there is none.
  std::optional<int32_t> First(Stream stream) const;
  // After an error: nobody will wait for what is left.
  void Abandon();

 private:
  struct One {
    int32_t op;
    std::unique_ptr<collectives::Work> work;
    Then then;
  };
  std::array<std::deque<One>, 4> streams_;  // ascending by op
};

}  // namespace muster::engine
