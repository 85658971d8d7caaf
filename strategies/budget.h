// How much a plan may cost. Work is counted, not timed, so that the same plan is refused or made on every machine; the
// limits are such that a slow core takes less than 5 s. Pure: whether anyone still waits for the plan is asked through
// a function.
//
//   Budget budget({}, [&] { return caller_has_gone.load(); });
//   absl::StatusOr<MemoryPlan> plan = PlanMemory(train, inventory, ranks, &budget);
//
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace muster::strategies {

class Budget {
 public:
  struct Limits {
    // About 10 ns each on a core of 2020: an op that is emitted, checked or timed counts several.
    uint64_t work = 200'000'000;
    // At the same time. A coordinator grows by up to an eighth more, what its allocator rounds up and keeps.
    uint64_t bytes = uint64_t{224} << 20;
    // Whoever runs out of it is called again with more, so nothing is left out for want of it.
    bool again = false;
  };

  Budget() : Budget(Limits()) {}
  // `cancelled` is asked at every call; none: never.
  explicit Budget(const Limits& limits, std::function<bool()> cancelled = nullptr)
      : limits_(limits), cancelled_(std::move(cancelled)) {}

  // Before a piece of work. `what` completes "planning stops at its limit of work: ": what is large, and what to
  // change. ResourceExhausted: that is more than what is left. Cancelled: no one waits for the plan any more.
  absl::Status Spend(uint64_t work, absl::FunctionRef<std::string()> what);
  // Before so many bytes are held at the same time, those of earlier calls not counted. ResourceExhausted.
  absl::Status Hold(uint64_t bytes, absl::FunctionRef<std::string()> what);

  // A budget of its own for something that may be left undone, of so much of the work that is left; charged later.
  Budget Part(double share) const {
    return Budget({static_cast<uint64_t>(share * static_cast<double>(left())), limits_.bytes, limits_.again},
                  cancelled_);
  }
  void Charge(const Budget& part) {
    spent_ += part.spent_;
    most_bytes_ = std::max(most_bytes_, part.most_bytes_);
  }

  uint64_t spent() const { return spent_; }
  uint64_t most_bytes() const { return most_bytes_; }
  uint64_t left() const { return limits_.work - spent_; }
  bool again() const { return limits_.again; }

 private:
  const Limits limits_;
  const std::function<bool()> cancelled_;
  uint64_t spent_ = 0;
  uint64_t most_bytes_ = 0;
};

// Null: without a bound, as in a trainer, which compiles what was planned.
absl::Status Spend(Budget* budget, uint64_t work, absl::FunctionRef<std::string()> what);
absl::Status Hold(Budget* budget, uint64_t bytes, absl::FunctionRef<std::string()> what);

}  // namespace muster::strategies
