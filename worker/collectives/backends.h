// The backends that this build has, for `muster-trainer --self-check` and for a first look at an installation.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace muster::collectives {

struct BuiltBackend {
  std::string name;     // devices: cpu, cuda; collectives: gloo, direct, nccl
  std::string version;  // of the library that implements it; empty: no version of its own
};

// Asks the loaded libraries, so it also finds one that is missing or was not linked. Needs no GPU. Internal: this build
// has CUDA, but a library of it is not there or does not answer; the message names it.
absl::StatusOr<std::vector<BuiltBackend>> Backends();

// One line each: "gloo" or "nccl 2.28.9".
std::string Describe(const std::vector<BuiltBackend>& backends);

}  // namespace muster::collectives
