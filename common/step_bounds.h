// The bounds of a job's `steps`, in one text for whoever finds that they are not kept: the reader of job files, for
// numbers that no field holds, and the coordinator.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace muster {

inline constexpr uint64_t kMaxJobSteps = 1'000'000'000'000;  // their product with a batch stays below 2^63

inline std::string StepsOutOfBounds(absl::string_view got) {
  return absl::StrCat("must be 1 to ", kMaxJobSteps, ", got ", got);
}

}  // namespace muster
