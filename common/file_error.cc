#include "common/file_error.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

std::string FolderAbove(const std::string& path) {
  const size_t slash = path.rfind('/', path.find_last_not_of('/'));
  return slash == std::string::npos ? std::string(".") : path.substr(0, std::max<size_t>(slash, 1));
}

}  // namespace

bool IsFullDisk(int error) { return error == ENOSPC || error == EDQUOT; }

absl::Status FileError(int error, std::string_view what) {
  const std::string message(what);
  if (IsFullDisk(error)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        message, error == EDQUOT
                     ? ": disk quota exceeded: remove files, or ask for a larger quota (see quota)"
                     : ": no space left on the device: remove files, or name a folder on another disk (see df)"));
  }
  switch (error) {
    case EFBIG:
      return absl::ResourceExhaustedError(absl::StrCat(message, ": file size limit reached (see ulimit -f)"));
    case EIO:
      return absl::DataLossError(absl::StrCat(message, ": the disk reports an input/output error (see dmesg)"));
    case EROFS:
      return absl::PermissionDeniedError(absl::StrCat(
          message,
          ": the file system is read-only: name a folder on another one, or remount it for writing (see mount)"));
    case EACCES:
      return absl::PermissionDeniedError(absl::StrCat(message, ": Permission denied, this process runs as user ",
                                                      geteuid(), " (see ls -l, also of the folders above)"));
    default:
      return absl::ErrnoToStatus(error, message);
  }
}

bool IsKernelFolder(const std::string& folder) {
  struct statfs system {};
  return statfs(folder.c_str(), &system) == 0 &&
         (system.f_type == PROC_SUPER_MAGIC || system.f_type == SYSFS_MAGIC || system.f_type == CGROUP2_SUPER_MAGIC);
}

std::string ExistingPart(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();  // lstat would follow a link before it
  struct stat found {};
  while (lstat(path.c_str(), &found) != 0 && path != "/" && path != ".") path = FolderAbove(path);
  return path;
}

std::string WhyBroken(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(path, error);
  struct stat found {};
  if (error || stat(path.c_str(), &found) == 0) return "";
  if (errno == ELOOP) {
    return absl::StrCat("is part of a loop of symbolic links (to ", target.native(),
                        "): let one of them name what is there, or remove them");
  }
  if (errno != ENOENT && errno != ENOTDIR) return "";  // there, but not for this user
  return absl::StrCat("is a broken symbolic link (to ", target.native(), "): create what it names, or remove it");
}

std::string WhyNotCreatable(const std::string& path) {
  const std::string folder = FolderAbove(path);
  struct stat found {};
  const int error = stat(folder.c_str(), &found) == 0 ? 0 : errno;
  if (error == 0 && !S_ISDIR(found.st_mode)) return absl::StrCat(folder, " is not a folder");
  // To say that /proc/x is not there would ask users to create it.
  const std::string existing = ExistingPart(folder);
  if (IsKernelFolder(existing)) {
    return absl::StrCat("nothing can be created in ", existing, ", which the kernel provides");
  }
  return error == ENOENT || error == ENOTDIR ? absl::StrCat("there is no folder ", folder) : "";
}

absl::Status CreateError(int error, const std::string& path) {
  const std::string what = absl::StrCat("cannot create ", path);
  const absl::Status plain = FileError(error, what);
  const std::string why = WhyNotCreatable(path);
  return why.empty() ? plain : absl::Status(plain.code(), absl::StrCat(what, ": ", why));
}

absl::Status FlushStandardOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  // An earlier write may have failed, so errno does not say why. Writing nothing fails only where nothing can be
  // written.
  const bool closed = write(STDOUT_FILENO, "", 0) < 0 && errno == EBADF;
  return absl::UnknownError(
      absl::StrCat("cannot write to standard output: ", closed ? "it is closed" : "is the disk full?"));
}

}  // namespace muster
