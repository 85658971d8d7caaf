// Plain PyTorch in a process of its own, started once for all the cases of a test program: importing torch takes longer
// than most cases.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"

namespace muster::parity {

struct Curve {
  std::vector<double> losses, norms;
};

// The largest relative differences over the steps, also printed.
struct Difference {
  double loss = 0, norm = 0;
};
// Infinite when the curves do not have the same, positive number of steps.
Difference Compare(const Curve& ours, const Curve& theirs);

// fp32 is 3e-7 (losses) and 8e-6 (norms) from float64; mistakes are farther.
inline constexpr double kLossLimit = 5e-6, kNormLimit = 3e-5;
inline bool Same(const Difference& d) { return d.loss <= kLossLimit && d.norm <= kNormLimit; }

// gpt2_peer.py, run by $MUSTER_PEER_PYTHON. Not thread-safe.
class Peer {
 public:
  // Of this program; started at the first call.
  static Peer& Get();
  ~Peer();

  // Trains as `config` says (gpt2_peer.py). FailedPrecondition: the variable is not set. Internal: the process ended or
  // answered with something else; what it printed stands on stderr.
  absl::StatusOr<Curve> Train(const nlohmann::json& config);

 private:
  Peer();
  absl::Status started_;
  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

}  // namespace muster::parity
