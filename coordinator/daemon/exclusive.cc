#include "coordinator/daemon/exclusive.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace muster::server {
namespace {

absl::Status SystemError(const char* what, const std::string& path) {
  return absl::InternalError(absl::StrCat(what, " ", path, ": ", std::strerror(errno)));
}

}  // namespace

absl::Status PreparePrivateFolder(const std::string& path) {
  std::error_code ignored;  // mkdir reports the error
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return SystemError("cannot create the folder", path);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return SystemError("cannot read", path);
  if (!S_ISDIR(info.st_mode)) return absl::PermissionDeniedError(absl::StrCat(path, " is no folder"));
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrCat("the folder ", path, " belongs to user ", info.st_uid, ", this process runs as user ", geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("other users may enter the folder ", path,
                                                    "; who reaches a socket in it may run code: chmod 700 it"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Lock> Lock::Take(const std::string& path, const std::string& what) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return SystemError("cannot open", path);
  Lock lock(fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return SystemError("cannot lock", path);
    char holder[32] = {};
    const ssize_t size = pread(fd, holder, sizeof(holder) - 1, 0);
    const std::string pid(absl::StripAsciiWhitespace(absl::string_view(holder, size > 0 ? size : 0)));
    return absl::FailedPreconditionError(absl::StrCat("another coordinator (process ", pid.empty() ? "unknown" : pid,
                                                      ") has ", what, "; stop it first, or name another one"));
  }
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(fd, 0) != 0 || pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return SystemError("cannot write", path);
  }
  return lock;
}

Lock::Lock(Lock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Lock& Lock::operator=(Lock&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Lock::~Lock() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace muster::server
