// Plain PyTorch in a separate process, started once for all cases of a test program: importing torch takes longer than
// most cases.
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
// Infinite unless the curves have the same, positive number of steps.
Difference Compare(const Curve& ours, const Curve& theirs);

// fp32 is 3e-7 (losses) and 8e-6 (norms) from float64; mistakes are farther off.
inline constexpr double kLossLimit = 5e-6, kNormLimit = 3e-5;
inline bool Same(const Difference& d) { return d.loss <= kLossLimit && d.norm <= kNormLimit; }

// peer.py, run by $MUSTER_PEER_PYTHON. Not thread-safe.
//
// FailedPrecondition: the variable is not set. Internal: the process exited or answered something else; its output is
// on stderr.
class Peer {
 public:
  // The one of this program; the first call starts it.
  static Peer& Get();
  ~Peer();

  absl::StatusOr<Curve> TrainGpt2(const nlohmann::json& config);              // gpt2_peer.py
  absl::StatusOr<Curve> TrainLlama(const nlohmann::json& config);             // llama_peer.py
  absl::StatusOr<nlohmann::json> AskOptimizer(const nlohmann::json& config);  // optimizer_peer.py
  absl::StatusOr<nlohmann::json> AskOrders(const nlohmann::json& config);     // orders_peer.py
  absl::StatusOr<nlohmann::json> AskResnet(const nlohmann::json& config);     // resnet_peer.py
  absl::StatusOr<nlohmann::json> AskTensors(const nlohmann::json& config);    // tensors_peer.py

 private:
  Peer();
  // Asks the module `peer`.
  absl::StatusOr<nlohmann::json> Ask(const char* peer, nlohmann::json config);
  absl::Status started_;
  pid_t pid_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

}  // namespace muster::parity
