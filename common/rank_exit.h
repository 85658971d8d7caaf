// Exit codes of a rank's process that the coordinator tells apart. 0 is success, 1 any other error.
#pragma once

namespace muster {

// The loss or the gradient was not finite, and the spec does not let the step be skipped (on_nonfinite).
inline constexpr int kNonFiniteExitCode = 3;

}  // namespace muster
