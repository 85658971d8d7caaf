// Who a folder of checkpoints belongs to: what writing and retention share. Private to checkpoint; Claim, CheckFolder
// and OwnerOf are in checkpoint.h, adoption is in adopt.h.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"
#include "common/file/durable_file.h"
#include "proto/manifest.pb.h"

namespace muster::checkpoint {

// Before something is written: OK if `path` belongs to `holder`. A folder without an owner is claimed for it. Errors as
// Claim.
absl::Status Hold(const std::string& path, const Holder& holder);

// Whether a folder of this owner is `holder`'s: the job is the same, and the store where both are known.
bool Owns(const FolderOwner& owner, const Holder& holder);

// The error that refuses `holder`: names the owner and what to do.
absl::Status BelongsToAnother(const std::string& path, const FolderOwner& owner, const Holder& holder);

// Writes an owner file, complete on disk before it has its name.
absl::Status WriteOwnerFile(const std::string& file, const FolderOwner& owner, const FileOptions& options);
// None: no such file. FailedPrecondition: it names no job. Others: it cannot be read.
absl::StatusOr<std::optional<FolderOwner>> ReadOwnerFile(const std::string& path, const char* name);

}  // namespace muster::checkpoint
