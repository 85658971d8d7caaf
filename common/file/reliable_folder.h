// Whether a folder is on a file system that a store can rely on: local, with locks that exclude and an fsync that
// works.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace muster {

// The type of the file system that `path` is on: statfs's f_type; 0: unknown.
long FileSystemType(const std::string& path);
// "NFS" for the type of a file system on other machines, or in another process (FUSE); null: it is local.
const char* NetworkFileSystem(long type);

// FailedPrecondition: it is on a network file system and `allow_network` is false, or its locks do not exclude, or
// fsync fails; the message says what is at risk. `type`: of FileSystemType.
absl::Status CheckReliable(const std::string& folder, bool allow_network, long type);

}  // namespace muster
