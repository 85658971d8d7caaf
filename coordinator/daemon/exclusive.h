// Folders and files that one coordinator uses exclusively.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::server {

// Creates `path` and its missing parents as a folder of this user that no other user may enter. PermissionDenied: the
// folder exists and belongs to another user, or others may enter it. Internal: the system's error.
absl::Status PreparePrivateFolder(const std::string& path);

// A file that is locked (flock) while this object exists, and contains our process id. The file is not removed:
// otherwise two processes could lock two files of the same name.
class Lock {
 public:
  // FailedPrecondition: another process has locked it; the message names `what` and that process's id.
  static absl::StatusOr<Lock> Take(const std::string& path, const std::string& what);
  Lock(Lock&& other) noexcept;
  Lock& operator=(Lock&& other) noexcept;
  ~Lock();

 private:
  explicit Lock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace muster::server
