#include "common/file/private_folder.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"

namespace muster {

absl::Status MakeFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) == 0) return SyncFolder(ParentFolder(path));
  const int error = errno;
  std::error_code ignored;
  if (error == EEXIST && std::filesystem::is_directory(path, ignored)) return absl::OkStatus();
  const std::string what = absl::StrCat("cannot make the folder ", path);
  const absl::Status plain = FileError(error, what);
  const std::string why = WhyNotCreatable(path);
  return why.empty() ? plain : absl::Status(plain.code(), absl::StrCat(what, ": ", why));
}

absl::Status JudgePrivateFolder(const std::string& path, std::optional<uid_t> link_owner, const struct stat& info,
                                uid_t user) {
  if (link_owner.has_value() && *link_owner != user && *link_owner != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, " is a symbolic link of user ", *link_owner, ", which may lead anywhere: remove it"));
  }
  if (!S_ISDIR(info.st_mode)) return absl::PermissionDeniedError(absl::StrCat(path, " is not a folder"));
  if (info.st_uid != user) {
    return absl::PermissionDeniedError(
        absl::StrCat("the folder ", path, " belongs to user ", info.st_uid, ", this process runs as user ", user));
  }
  if ((info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("other users may enter the folder ", path, " (mode ", absl::StrFormat("%o", info.st_mode & 07777),
                     "), and who reaches a socket in it may run code: chmod 700 ", path));
  }
  return absl::OkStatus();
}

absl::Status CheckPrivateFolder(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return FileError(errno, absl::StrCat("cannot look at the folder ", path));
  std::optional<uid_t> link_owner;
  if (S_ISLNK(info.st_mode)) {
    link_owner = info.st_uid;
    info = {};  // of a link that leads nowhere: no folder
    if (stat(path.c_str(), &info) != 0 && errno != ENOENT) {
      return FileError(errno, absl::StrCat("cannot look at the folder ", path));
    }
  }
  return JudgePrivateFolder(path, link_owner, info, geteuid());
}

absl::Status MakePrivateFolder(const std::string& path) {
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  std::error_code ignored;  // MakeFolder reports it
  std::filesystem::create_directories(ParentFolder(folder), ignored);
  // The check says what is wrong with something that is there and is no folder.
  if (absl::Status status = MakeFolder(folder); !status.ok() && !absl::IsAlreadyExists(status)) return status;
  return CheckPrivateFolder(folder);
}

}  // namespace muster
