#include "common/tls/private_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"

namespace muster::tls {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 20;

// ErrnoToStatus chooses the code; the system's text follows ours.
absl::Status Failed(const char* what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  int fd() const { return fd_; }
  bool Close() { return close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

absl::Status SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
  const File file(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (file.fd() < 0 || fsync(file.fd()) != 0) return Failed("cannot make durable", folder);
  return absl::OkStatus();
}

absl::Status WriteTo(File& file, std::string_view content, unsigned mode, const std::string& path) {
  if (fchmod(file.fd(), mode) != 0) return Failed("cannot set the mode of", path);
  while (!content.empty()) {
    const ssize_t count = write(file.fd(), content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("cannot write", path);
    content.remove_prefix(static_cast<size_t>(count));
  }
  if (fsync(file.fd()) != 0 || !file.Close()) return Failed("cannot write", path);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Read(const File& file, const std::string& path) {
  std::string text;
  char buffer[16384];
  ssize_t count = 0;
  while ((count = read(file.fd(), buffer, sizeof buffer)) != 0) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Failed("cannot read", path);
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > kMaxBytes) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is too large to be a key, a token or a certificate"));
    }
  }
  return text;
}

}  // namespace

absl::Status WritePrivateFile(const std::string& path, std::string_view content, unsigned mode) {
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".new");
  unlink(temporary.c_str());  // left by a killed process with this pid
  {
    File file(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (file.fd() < 0) return Failed("cannot make", temporary);
    if (absl::Status status = WriteTo(file, content, mode, temporary); !status.ok()) {
      unlink(temporary.c_str());
      return status;
    }
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = Failed("cannot write", path);
    unlink(temporary.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

absl::Status CreatePrivateFile(const std::string& path, std::string_view content) {
  File file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.fd() < 0) return Failed("cannot make", path);
  if (absl::Status status = WriteTo(file, content, 0600, path); !status.ok()) {
    unlink(path.c_str());
    return status;
  }
  return SyncFolderOf(path);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return Failed("cannot open", path);
  return Read(file, path);
}

absl::StatusOr<std::string> ReadPrivateFile(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return Failed("cannot open", path);
  struct stat info {};
  if (fstat(file.fd(), &info) != 0) return Failed("cannot look at", path);
  if (S_ISREG(info.st_mode) && (info.st_uid != geteuid() || (info.st_mode & 077) != 0)) {
    return absl::PermissionDeniedError(absl::StrCat(
        path, " holds a secret, so it must belong to this user and be closed to others: chown it, and chmod 600 ",
        path));
  }
  return Read(file, path);
}

absl::Status MakePrivateFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return Failed("cannot make the folder", path);
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return Failed("cannot look at", path);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " must be a folder of this user that is closed to others: chmod 700 ", path));
  }
  return absl::OkStatus();
}

}  // namespace muster::tls
