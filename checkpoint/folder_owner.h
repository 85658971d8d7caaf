// Who a folder of checkpoints belongs to: what writing and retention share. Private to checkpoint; Claim, CheckFolder
// and OwnerOf are in checkpoint.h.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster::checkpoint {

// Of temporaries that were to become an owner file (common/file/durable_file.h).
inline constexpr char kClaimPrefix[] = ".owner.json.";

// Before something is written: OK if `path` belongs to `job`. A folder without an owner, or whose owner has released
// it, is claimed for the job. Errors as Claim.
absl::Status Hold(const std::string& path, const std::string& job);

// The error that refuses `job`: names the owner and what to do.
absl::Status BelongsToAnother(const std::string& path, const std::string& owner, const std::string& job);

}  // namespace muster::checkpoint
