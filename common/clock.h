// Time as an argument. Decisions read only the steady part; the wall part is copied into records for users.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace muster {

// An instant of the steady clock of this process: comparable with others of the same process, never stored.
class SteadyTime {
 public:
  constexpr SteadyTime() = default;
  static constexpr SteadyTime FromNanoseconds(int64_t nanoseconds) { return SteadyTime(nanoseconds); }
  constexpr int64_t nanoseconds() const { return nanoseconds_; }

  friend constexpr auto operator<=>(SteadyTime, SteadyTime) = default;
  friend absl::Duration operator-(SteadyTime a, SteadyTime b) {
    return absl::Nanoseconds(a.nanoseconds_ - b.nanoseconds_);
  }
  friend SteadyTime operator+(SteadyTime a, absl::Duration d) {
    return SteadyTime(a.nanoseconds_ + absl::ToInt64Nanoseconds(d));
  }

 private:
  explicit constexpr SteadyTime(int64_t nanoseconds) : nanoseconds_(nanoseconds) {}
  int64_t nanoseconds_ = 0;
};

// How a clock that reads `theirs` differs from one that reads `ours`: "1h2m3s ahead of", "5s behind".
std::string Difference(absl::Time theirs, absl::Time ours);

struct Now {
  SteadyTime steady;
  absl::Time wall;
};

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Now Read() const = 0;
};

// CLOCK_BOOTTIME (runs while the machine sleeps) and CLOCK_REALTIME.
class RealClock final : public Clock {
 public:
  Now Read() const override;
};

// Moves only through Advance and JumpWall. Not thread-safe.
class FakeClock final : public Clock {
 public:
  Now Read() const override { return now_; }
  void Advance(absl::Duration d) {
    now_.steady = now_.steady + d;
    now_.wall += d;
  }
  // Moves only the wall clock, as when an operator sets it.
  void JumpWall(absl::Duration d) { now_.wall += d; }

 private:
  Now now_{SteadyTime::FromNanoseconds(1'000'000'000), absl::FromUnixSeconds(1'700'000'000)};
};

}  // namespace muster
