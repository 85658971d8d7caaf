#include "common/file/beneath.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/failpoint.h"
#include "common/file_error.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

constexpr char kOutside[] = "muster/outside";  // a payload of such a status
constexpr int kAttempts = 100;                 // openat2 fails with EAGAIN if something is renamed meanwhile

class OpenFolder {
 public:
  explicit OpenFolder(const std::string& path) : fd_(open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}
  explicit OpenFolder(int fd) : fd_(fd) {}
  OpenFolder(const OpenFolder&) = delete;
  // That of this name in it, which is no link; what it was before is closed.
  void Enter(const std::string& name) {
    const int inner = openat(fd_, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    fd_ = inner;
    errno = error;
  }
  ~OpenFolder() {
    if (fd_ >= 0) close(fd_);
  }
  int fd() const { return fd_; }

 private:
  int fd_;
};

absl::Status Outside(const std::string& path, const std::string& real, const std::vector<std::string>& roots) {
  absl::Status status = absl::PermissionDeniedError(absl::StrCat(
      path, real == path ? "" : absl::StrCat(" (", real, ")"), " is not below ", absl::StrJoin(roots, " or ")));
  status.SetPayload(kOutside, {});
  return status;
}

// -1 and errno. ENOSYS: the kernel cannot.
int CallOpenat2(int folder, const std::string& name, int flags, unsigned mode) {
  if (failpoint::Hit("file.openat2") != 0) {
    errno = ENOSYS;
    return -1;
  }
  open_how how{};
  how.flags = static_cast<unsigned>(flags);
  how.mode = (flags & (O_CREAT | O_TMPFILE)) == 0 ? 0 : mode;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  for (int attempt = 0;; ++attempt) {
    const int fd = static_cast<int>(syscall(SYS_openat2, folder, name.c_str(), &how, sizeof how));
    if (fd >= 0 || errno != EAGAIN || attempt == kAttempts) return fd;
  }
}

// Without openat2: what an open folder's path is now cannot be changed by links, and the last name may be none.
int OpenByParent(const std::string& root, const std::string& real, int flags, unsigned mode) {
  const fs::path path(real);
  const bool is_root = real == root;
  const OpenFolder parent(is_root ? real : path.parent_path().string());
  if (parent.fd() < 0) return -1;
  std::error_code error;
  const fs::path where = fs::read_symlink(absl::StrCat("/proc/self/fd/", parent.fd()), error);
  if (error || !IsWithin(where, root)) {
    errno = EXDEV;
    return -1;
  }
  const std::string name = is_root ? "." : path.filename().string();
  return openat(parent.fd(), name.c_str(), flags | O_NOFOLLOW, mode);
}

int OpenBelow(const std::string& root, const std::string& real, int flags, unsigned mode) {
  const OpenFolder folder(root);
  if (folder.fd() < 0) return -1;
  const std::string name = real == root ? "." : real.substr(root == "/" ? 1 : root.size() + 1);
  const int fd = CallOpenat2(folder.fd(), name, flags, mode);
  // EPERM: a sandbox that does not know the call.
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
  return OpenByParent(root, real, flags, mode);
}

bool LeadsOutside(int error) { return error == EXDEV || error == ELOOP || error == EAGAIN; }

absl::Status Explained(const absl::Status& status) {
  if (!status.GetPayload(kOutside).has_value()) return status;
  return absl::PermissionDeniedError(absl::StrCat(
      status.message(), "; this worker's jobs may use no other folders (--data-roots, --checkpoint-roots)"));
}

Confinement& TheConfinement() {
  static Confinement* const confinement = new Confinement;  // never destroyed: threads may outlive main
  return *confinement;
}

}  // namespace

std::string RealPath(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  std::string text = error ? fs::path(path).lexically_normal().string() : real.string();
  while (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

std::string PlaceOf(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::string place = RealPath(path);
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    fs::path existing = place;
    while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path()) {
      existing = existing.parent_path();
    }
    const fs::path target = fs::read_symlink(existing, error);
    if (error) return place;
    place = RealPath(existing.parent_path() / target / fs::path(place).lexically_relative(existing));
  }
  return place;
}

bool IsWithin(const std::string& path, const std::string& folder) {
  const auto [at, end] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return at == folder.end() && (end == path.end() || *end == '/' || folder == "/");
}

absl::StatusOr<int> OpenBeneath(const std::vector<std::string>& roots, const std::string& path, int flags,
                                unsigned mode) {
  const std::string real = RealPath(path);
  for (const std::string& given : roots) {
    const std::string root = RealPath(given);
    if (!IsWithin(real, root)) continue;
    const int fd = OpenBelow(root, real, flags, mode);
    if (fd >= 0) return fd;
    if (!LeadsOutside(errno)) return FileError(errno, path);
  }
  return Outside(path, real, roots);
}

absl::Status CheckBeneath(const std::vector<std::string>& roots, const std::string& path) {
  const std::string real = RealPath(path);
  std::error_code error;
  fs::path existing = real;
  while (!fs::exists(fs::symlink_status(existing, error)) && existing.has_relative_path()) {
    existing = existing.parent_path();
  }
  // RealPath has followed all links but those that lead nowhere.
  if (fs::is_symlink(existing, error)) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": ", existing.string(), " is a symbolic link to something that is not there"));
  }
  for (const std::string& given : roots) {
    const std::string root = RealPath(given);
    if (!IsWithin(real, root)) continue;
    if (!IsWithin(existing, root)) return absl::OkStatus();  // the root itself is not there yet
    const int fd = OpenBelow(root, existing, O_PATH | O_CLOEXEC, 0);
    if (fd >= 0) {
      close(fd);
      return absl::OkStatus();
    }
    if (!LeadsOutside(errno)) return FileError(errno, existing.string());
  }
  return Outside(path, real, roots);
}

absl::Status MakeFoldersBeneath(const std::vector<std::string>& roots, const std::string& path) {
  if (absl::Status status = CheckBeneath(roots, path); !status.ok()) return status;
  const std::string real = RealPath(path);
  for (const std::string& given : roots) {
    const std::string root = RealPath(given);
    if (!IsWithin(real, root)) continue;
    std::error_code error;
    fs::create_directories(root, error);
    if (error) return FileError(error.value(), root);
    std::string existing = real;
    while (existing != root && !fs::exists(existing, error)) existing = fs::path(existing).parent_path();
    OpenFolder folder(OpenBelow(root, existing, O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    for (const fs::path& name : fs::path(real).lexically_relative(existing)) {
      if (folder.fd() < 0) break;
      if (name == ".") continue;
      if (mkdirat(folder.fd(), name.c_str(), 0777) != 0 && errno != EEXIST) return FileError(errno, path);
      folder.Enter(name);
    }
    if (folder.fd() >= 0) return absl::OkStatus();
    if (!LeadsOutside(errno)) return FileError(errno, path);
  }
  return Outside(path, real, roots);
}

void Confine(Confinement confinement) { TheConfinement() = std::move(confinement); }

absl::StatusOr<int> OpenConfined(FileUse use, const std::string& path, int flags, unsigned mode) {
  const Confinement& all = TheConfinement();
  const std::vector<std::string>& roots = use == FileUse::kData   ? all.data
                                          : use == FileUse::kRead ? all.read
                                                                  : all.write;
  if (roots.empty()) {
    const int fd = open(path.c_str(), flags, mode);
    if (fd < 0) return FileError(errno, path);
    return fd;
  }
  std::error_code error;
  const fs::path absolute = fs::absolute(path, error);
  absl::StatusOr<int> fd = OpenBeneath(roots, error ? path : absolute.string(), flags, mode);
  if (!fd.ok()) return Explained(fd.status());
  return fd;
}

absl::Status CheckConfined(const std::string& path) {
  const std::vector<std::string>& roots = TheConfinement().write;
  return roots.empty() ? absl::OkStatus() : Explained(CheckBeneath(roots, path));
}

absl::Status MakeConfinedFolders(const std::string& path) {
  std::error_code error;
  const std::vector<std::string>& roots = TheConfinement().write;
  if (roots.empty()) {
    fs::create_directories(path, error);
    if (!error) return absl::OkStatus();
    fs::path missing = path;  // the first that could not be created
    std::error_code ignored;
    while (missing.has_parent_path() && !fs::exists(missing.parent_path(), ignored)) missing = missing.parent_path();
    if (const std::string why = WhyBroken(missing); !why.empty()) {
      return absl::FailedPreconditionError(absl::StrCat(missing.string(), " ", why));
    }
    return CreateError(error.value(), missing.string());
  }
  const fs::path absolute = fs::absolute(path, error);
  return Explained(MakeFoldersBeneath(roots, error ? path : absolute.string()));
}

}  // namespace muster
