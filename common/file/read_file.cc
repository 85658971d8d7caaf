#include "common/file/read_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/bytes.h"
#include "common/file_error.h"

namespace muster {
namespace {

constexpr uint64_t kMaxPrivateBytes = uint64_t{1} << 20;

absl::StatusOr<std::string> ReadAll(int descriptor, const std::string& path, uint64_t max_bytes) {
  std::string content;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t count = read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, absl::StrCat("cannot read ", path));
    if (count == 0) return content;
    content.append(buffer, static_cast<size_t>(count));
    if (content.size() > max_bytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is too large: it has more than ", FormatBytes(max_bytes)));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t max_bytes) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([descriptor] { close(descriptor); });
  return ReadAll(descriptor, path, max_bytes);
}

absl::StatusOr<std::string> ReadFrom(const std::string& path, uint64_t offset) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([descriptor] { close(descriptor); });
  if (lseek(descriptor, static_cast<off_t>(offset), SEEK_SET) < 0) {
    return FileError(errno, absl::StrCat("cannot read ", path));
  }
  return ReadAll(descriptor, path, std::numeric_limits<uint64_t>::max());
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([descriptor] { close(descriptor); });
  struct stat info {};
  if (fstat(descriptor, &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (S_ISREG(info.st_mode) && (info.st_uid != geteuid() || (info.st_mode & 077) != 0)) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, " holds a secret, so it must belong to this user and be closed to others: chown it, and chmod 600 ",
        path));
  }
  return ReadAll(descriptor, path, kMaxPrivateBytes);
}

}  // namespace muster
