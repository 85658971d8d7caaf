// Folders and files that one coordinator has to itself.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::server {

// Makes `path`, and what is missing above it, a folder of this user that nobody else may enter. PermissionDenied: it is
// there and belongs to somebody else, or others may enter it. Internal: the system's error.
absl::Status PreparePrivateFolder(const std::string& path);

// A file that is locked (flock) while this object lives, with our process id in it. The file stays: removing it would
// let two processes lock two files of the same name.
class Lock {
 public:
  // FailedPrecondition: another process has it; the message names `what` and the holder's process id.
  static absl::StatusOr<Lock> Take(const std::string& path, const std::string& what);
  Lock(Lock&& other) noexcept;
  Lock& operator=(Lock&& other) noexcept;
  ~Lock();

 private:
  explicit Lock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace muster::server
