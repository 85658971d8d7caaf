// Files whose content this process may run as code: below folders that its administrator named, and writable by no one
// else.
#pragma once

#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster {

// An open regular file. What was checked is what the descriptor reads, whatever the path means later. Movable.
class TrustedFile {
 public:
  // `roots`: absolute folders. PermissionDenied: there are no roots, the file's real path is below none of them, or it,
  // a folder between or the root itself belongs to another user than root and this process's, or may be written by
  // its group or others; the message says what to do. InvalidArgument: no regular file. NotFound. Others as FileError.
  static absl::StatusOr<TrustedFile> Open(const std::string& path, const std::vector<std::string>& roots);
  // Likewise without roots: a file that this process's user named himself. Nothing but its kind is checked.
  static absl::StatusOr<TrustedFile> OpenNamed(const std::string& path);

  ~TrustedFile();
  TrustedFile(TrustedFile&& other) noexcept : fd_(other.fd_), path_(std::move(other.path_)) { other.fd_ = -1; }
  TrustedFile& operator=(TrustedFile&&) = delete;

  int fd() const { return fd_; }
  const std::string& path() const { return path_; }  // without symbolic links

 private:
  TrustedFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  int fd_;
  std::string path_;
};

// What Open decides about the file and each folder down to it. Pure.
absl::Status JudgeTrusted(const std::string& path, const struct stat& info, uid_t user);

// InvalidArgument: a root is no absolute path of a folder that is there; the message begins with it.
absl::Status CheckRoots(const std::vector<std::string>& roots);

}  // namespace muster
