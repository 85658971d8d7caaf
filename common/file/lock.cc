#include "common/file/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster {

absl::StatusOr<FileLock> FileLock::Take(const std::string& path, const std::string& holder, const std::string& resource,
                                        const std::string& advice) {
  const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return FileError(errno, absl::StrCat("cannot open the lock ", path));
  FileLock lock(descriptor);
  if (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FileError(errno, absl::StrCat("cannot lock ", path));
    char text[32];
    const ssize_t size = pread(descriptor, text, sizeof text, 0);
    const std::string pid(absl::StripAsciiWhitespace(absl::string_view(text, size > 0 ? size : 0)));
    return absl::FailedPreconditionError(absl::StrCat("another ", holder, " (process ", pid.empty() ? "unknown" : pid,
                                                      ") has ", resource, "; ", advice));
  }
  // The lock holds on a full disk, too; the error of the next process then says "unknown".
  const std::string text = absl::StrCat(getpid(), "\n");
  if (ftruncate(descriptor, 0) != 0 || pwrite(descriptor, text.data(), text.size(), 0) < 0) return lock;
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock& FileLock::operator=(FileLock&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace muster
