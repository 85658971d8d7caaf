// Who a folder of checkpoints belongs to: what writing and retention share. Private to checkpoint; Claim, CheckFolder
// and OwnerOf are in checkpoint.h.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster::checkpoint {

// Of files that were to become an owner file.
inline constexpr char kClaimPrefix[] = ".owner-";

// Before something is written: OK if `path` belongs to `job`. One that nobody owns (any more) is claimed for it.
// Errors as Claim.
absl::Status Hold(const std::string& path, const std::string& job);

// The error that refuses `job`: names the owner and what to do.
absl::Status BelongsToAnother(const std::string& path, const std::string& owner, const std::string& job);

}  // namespace muster::checkpoint
