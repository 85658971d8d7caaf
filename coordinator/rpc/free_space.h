#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace muster::rpc {

// ResourceExhausted: the disk of the coordinator's state folder has less free, so that no new jobs are accepted. Of a
// disk that cannot be asked: OK, since the commit reports its error.
absl::Status CheckFreeSpace(const std::string& state_dir, uint64_t min_free_bytes);

}  // namespace muster::rpc
