#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// Holds an exclusive lock (flock) on a file, which contains the id of this process. The file is never removed:
// otherwise two processes could lock two files of the same name. The kernel releases the lock when the process ends.
//
//   absl::StatusOr<FileLock> lock =
//       FileLock::Take(state_dir + "/lock", "muster-worker", state_dir, "stop it first, or name another folder");
class FileLock {
 public:
  // FailedPrecondition: another process has it: "another HOLDER (process 123) has RESOURCE; ADVICE". Others as
  // FileError: the file cannot be opened or locked.
  static absl::StatusOr<FileLock> Take(const std::string& path, const std::string& holder, const std::string& resource,
                                       const std::string& advice);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&& other) noexcept;
  ~FileLock();

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}
  int descriptor_;
};

}  // namespace muster
