// Checks the devices that ranks would use, before a node takes any: muster-trainer preflight, which the worker daemon
// runs in a process of its own (worker/agent/preflight.h), because a broken device may never answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/group.h"

namespace muster::trainer {

struct PreflightOptions {
  bool cuda = false;
  std::vector<uint32_t> slots;     // of GPUs: of CUDA devices 0, 1, ... of this process
  std::string host = "127.0.0.1";  // the address at which other ranks reach this node's
};

// What was found of one thing: an error, or a text for display.
struct PreflightFinding {
  std::string name;  // "cpu", "device 3", "collective"
  absl::Status status;
  std::string result;
  double flops_per_second = 0;
};

// Each device multiplies integers that have one right result, and its speed is measured; then all devices (on CPUs: two
// threads) sum a tensor by the collectives that ranks use. `begun` is called before each check and `found` after it.
void RunPreflight(const PreflightOptions& options, const std::function<void(const std::string& name)>& begun,
                  const std::function<void(const PreflightFinding&)>& found);

// All-reduces a tensor whose sum is known over `size` threads, each with a group of its own. `make` is called on those
// threads. The first error; DataLoss: a rank got another sum.
absl::Status CheckCollective(int size,
                             const std::function<absl::StatusOr<std::unique_ptr<collectives::Group>>(int rank)>& make,
                             bool cuda);

// The lines that muster-trainer preflight prints, and the worker daemon reads.
std::string BegunLine(const std::string& name);
std::string FoundLine(const PreflightFinding& finding);

}  // namespace muster::trainer
