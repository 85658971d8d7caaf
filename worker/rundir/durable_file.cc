#include "worker/rundir/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace muster::rundir {
namespace {

absl::Status WriteNew(const std::string& path, std::string_view content) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot create ", path));
  size_t written = 0;
  absl::Status status = WriteFully(fd, content, written);
  if (status.ok() && fsync(fd) != 0) status = absl::ErrnoToStatus(errno, "cannot fsync");
  if (close(fd) != 0 && status.ok()) status = absl::ErrnoToStatus(errno, "cannot close");
  if (!status.ok()) return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
  return status;
}

std::string ParentOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

}  // namespace

absl::Status WriteFully(int fd, std::string_view bytes, size_t& written) {
  written = 0;
  while (written < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + written, bytes.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, "cannot write");
    written += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status WriteDurably(const std::string& path, std::string_view content) {
  const std::string temporary = absl::StrCat(path, ".new");
  if (absl::Status status = WriteNew(temporary, content); !status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot rename ", temporary, " to ", path));
  }
  return SyncDirectory(ParentOf(path));
}

absl::StatusOr<std::string> ReadWhole(const std::string& path, uint64_t offset) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  std::string content;
  char buffer[16 * 1024];
  while (true) {
    const ssize_t n = pread(fd, buffer, sizeof buffer, static_cast<off_t>(offset + content.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (n == 0) return content;
    content.append(buffer, static_cast<size_t>(n));
  }
}

absl::Status SyncDirectory(const std::string& directory) {
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open folder ", directory));
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  // Some file systems (FUSE, network) do not support fsync of folders; nothing better is possible there.
  if (fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot fsync folder ", directory));
  }
  return absl::OkStatus();
}

absl::Status MakeDirectory(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return SyncDirectory(ParentOf(path));
  if (errno == EEXIST && std::filesystem::is_directory(path)) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot make folder ", path));
}

}  // namespace muster::rundir
