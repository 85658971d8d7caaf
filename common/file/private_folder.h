// Folders that only this user may enter. They hold sockets, secrets and jobs, and access to a socket is enough to run
// code.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "absl/status/status.h"

namespace muster {

// Creates `path` (mode 0700, durable in its parent) and its missing parents (mode by the umask), then checks it. Errors
// as CheckPrivateFolder, and as FileError if it cannot be created.
absl::Status MakePrivateFolder(const std::string& path);

// NotFound: nothing has that name. PermissionDenied: it is not a folder, belongs to another user, or other users may
// enter it; the message says what to do. A symbolic link must belong to this user or root, because anyone can create
// one in /tmp.
absl::Status CheckPrivateFolder(const std::string& path);
// What CheckPrivateFolder decides, for a process of `user`: `info` is of the folder, `link_owner` of the symbolic link
// to it, if `path` is one. Pure.
absl::Status JudgePrivateFolder(const std::string& path, std::optional<uid_t> link_owner, const struct stat& info,
                                uid_t user);

// Creates one folder (mode 0700, durable in its parent) in a folder that is private already. OK if it exists.
// AlreadyExists: something else has that name. Others as FileError.
absl::Status MakeFolder(const std::string& path);

}  // namespace muster
