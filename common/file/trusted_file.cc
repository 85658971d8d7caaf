#include "common/file/trusted_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/file_error.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// The root that the real path is below, without symbolic links; empty: none.
std::string RootOf(const std::string& real, const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    std::error_code error;
    const std::string folder = fs::canonical(root, error);
    if (error || folder.empty()) continue;
    if (absl::StartsWith(real, folder == "/" ? folder : folder + "/")) return folder;
  }
  return "";
}

absl::Status JudgePath(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  return JudgeTrusted(path, info, geteuid());
}

}  // namespace

absl::Status JudgeTrusted(const std::string& path, const struct stat& info, uid_t user) {
  if (info.st_uid != user && info.st_uid != 0) {
    return absl::PermissionDeniedError(absl::StrCat(path, " belongs to user ", info.st_uid,
                                                    ", who may change it; this process runs as user ", user,
                                                    ": chown it, or copy it to a folder of this user"));
  }
  if ((info.st_mode & 022) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("other users may write to ", path, " (mode ",
                                                    absl::StrFormat("%o", info.st_mode & 07777),
                                                    "), and so run code as this user: chmod go-w ", path));
  }
  return absl::OkStatus();
}

absl::Status CheckRoots(const std::vector<std::string>& roots) {
  for (const std::string& root : roots) {
    std::error_code error;
    if (root.empty() || root[0] != '/') {
      return absl::InvalidArgumentError(absl::StrCat("\"", root, "\" is not an absolute path"));
    }
    if (!fs::is_directory(root, error)) return absl::InvalidArgumentError(absl::StrCat(root, " is not a folder"));
  }
  return absl::OkStatus();
}

absl::StatusOr<TrustedFile> TrustedFile::OpenNamed(const std::string& path) {
  // O_NONBLOCK: a pipe of that name must not make this process wait.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path));
  TrustedFile file(fd, "");
  struct stat info {};
  if (fstat(fd, &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  std::error_code error;
  file.path_ = fs::read_symlink(absl::StrCat("/proc/self/fd/", fd), error);
  if (error) return absl::InternalError(absl::StrCat("cannot find the real path of ", path, ": ", error.message()));
  return file;
}

absl::StatusOr<TrustedFile> TrustedFile::Open(const std::string& path, const std::vector<std::string>& roots) {
  if (roots.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("may not load ", path,
                     ": this worker loads no libraries; start it with --plugin-roots FOLDER to allow those "
                     "below a folder (docs/security.md says what that means)"));
  }
  absl::StatusOr<TrustedFile> file = OpenNamed(path);
  if (!file.ok()) return file.status();
  const std::string root = RootOf(file->path(), roots);
  if (root.empty()) {
    return absl::PermissionDeniedError(
        absl::StrCat("may not load ", path, file->path() == path ? "" : absl::StrCat(", which is ", file->path()),
                     ": it is below none of the worker's --plugin-roots, ", absl::StrJoin(roots, ", ")));
  }
  struct stat info {};
  if (fstat(file->fd(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at ", path));
  if (absl::Status status = JudgeTrusted(file->path(), info, geteuid()); !status.ok()) return status;
  for (fs::path folder = fs::path(file->path()).parent_path();; folder = folder.parent_path()) {
    if (absl::Status status = JudgePath(folder); !status.ok()) return status;
    if (folder == root) return file;
  }
}

TrustedFile::~TrustedFile() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace muster
