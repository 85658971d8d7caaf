#include "worker/rundir/segments.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/file_error.h"

namespace muster::rundir {
namespace {

constexpr int kMostEntries = 1 << 14;

}  // namespace

std::string SegmentPath(const std::string& directory, std::string_view prefix, uint64_t index) {
  return absl::StrFormat("%s/%s.%06d", directory, prefix, index);
}

std::vector<uint64_t> ListSegments(const std::string& directory, std::string_view prefix) {
  std::vector<uint64_t> indices;
  std::error_code error;
  int entries = 0;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end && ++entries <= kMostEntries;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    absl::string_view rest = name;
    uint64_t index = 0;
    if (absl::ConsumePrefix(&rest, absl::StrCat(absl::string_view(prefix.data(), prefix.size()), ".")) &&
        rest.size() >= 6 && absl::SimpleAtoi(rest, &index)) {
      indices.push_back(index);
    }
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

absl::StatusOr<int> OpenTrainersFile(const std::string& path) {
  // O_NONBLOCK: a pipe of that name must not make this process wait.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0 && errno == ELOOP) return absl::DataLossError(absl::StrCat(path, " is a symbolic link"));
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  struct stat info {};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  close(fd);
  return absl::DataLossError(absl::StrCat(path, " is not a regular file"));
}

absl::StatusOr<std::string> ReadTrainersFile(const std::string& path, uint64_t offset, uint64_t max_bytes) {
  const absl::StatusOr<int> fd = OpenTrainersFile(path);
  if (!fd.ok()) return fd.status();
  const auto closed = absl::MakeCleanup([&fd] { close(*fd); });
  std::string text;
  char buffer[64 * 1024];
  while (true) {
    const ssize_t got = pread(*fd, buffer, sizeof buffer, static_cast<off_t>(offset + text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("cannot read ", path));
    if (got == 0) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (offset + text.size() > max_bytes) {
      return absl::DataLossError(absl::StrCat(path, " has more than ", max_bytes, " bytes"));
    }
  }
}

}  // namespace muster::rundir
