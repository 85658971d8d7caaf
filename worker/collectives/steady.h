// Deadlines by the steady clock: a change of the wall clock must not time out a collective.
#pragma once

#include <chrono>

#include "absl/time/time.h"

namespace muster::collectives {

using SteadyPoint = std::chrono::steady_clock::time_point;

inline SteadyPoint After(absl::Duration duration) {
  return std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
}

// Negative once it has passed.
inline absl::Duration Left(SteadyPoint deadline) {
  return absl::FromChrono(deadline - std::chrono::steady_clock::now());
}

}  // namespace muster::collectives
