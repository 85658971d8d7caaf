#include "common/file/durable_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/failpoint.h"
#include "common/file/beneath.h"
#include "common/file_error.h"

namespace muster {
namespace {

constexpr unsigned kDefaultMode = 0666;  // less the umask
constexpr int kNamesTried = 100;

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string PointsOf(const std::string& path, const FileOptions& options) {
  return options.points.empty() ? absl::StrCat("file.", NameOf(path)) : std::string(options.points);
}

// Random: containers that share a disk may have equal process ids.
std::string TemporaryOf(const std::string& path) {
  uint32_t random = 0;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random) random = static_cast<uint32_t>(getpid());
  return absl::StrCat(ParentFolder(path), "/.", NameOf(path), ".", absl::Hex(random, absl::kZeroPad8), ".new");
}

absl::Status WriteAt(int descriptor, const std::string& path, uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, absl::StrCat("writing ", path));
    bytes.remove_prefix(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

// Both return an errno.
int Replace(const std::string& from, const std::string& to) {
  return rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

// EEXIST: `to` is there.
int NameNew(const std::string& from, const std::string& to) {
  if (link(from.c_str(), to.c_str()) == 0) {
    unlink(from.c_str());
    return 0;
  }
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return errno;
  // A file system without hard links.
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  // It has neither. Create() checked before, so only a race is lost.
  return errno == EINVAL ? Replace(from, to) : errno;
}

absl::StatusOr<int> OpenFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("opening folder ", folder));
  return descriptor;
}

absl::Status SyncFolder(int descriptor, const std::string& folder, std::string_view point) {
  if (const int error = failpoint::Hit(point)) return FileError(error, absl::StrCat("syncing folder ", folder));
  if (fsync(descriptor) == 0) return absl::OkStatus();
  // Some file systems (FUSE, network) cannot fsync a folder; there is nothing better to do on them.
  if (errno == EINVAL || errno == ENOTSUP) return absl::OkStatus();
  return FileError(errno, absl::StrCat("syncing folder ", folder));
}

}  // namespace

std::string ParentFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status WriteFully(int descriptor, const std::string& path, std::string_view bytes, size_t& written) {
  written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(descriptor, bytes.data() + written, bytes.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError(errno, absl::StrCat("writing ", path));
    written += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

DurableFile::DurableFile(std::string path, std::string points, const FileOptions& options)
    : path_(std::move(path)), points_(std::move(points)), existing_(options.existing) {}

DurableFile::DurableFile(DurableFile&& other) noexcept
    : path_(std::move(other.path_)),
      points_(std::move(other.points_)),
      existing_(other.existing_),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      failed_(other.failed_) {}

DurableFile::~DurableFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

int DurableFile::Hit(std::string_view step) const { return failpoint::Hit(points_, step); }

absl::Status DurableFile::Open(const std::string& path, const FileOptions& options) {
  const unsigned mode = options.mode.value_or(kDefaultMode);
  const absl::StatusOr<int> opened =
      OpenConfined(FileUse::kWrite, path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (!opened.ok()) {
    if (absl::IsAlreadyExists(opened.status())) return opened.status();
    // The name that the caller gave, not the temporary one.
    const std::string what = absl::StrCat("cannot create ", path_);
    const std::string why = WhyNotCreatable(path_);
    if (!why.empty()) return absl::Status(opened.status().code(), absl::StrCat(what, ": ", why));
    absl::string_view cause = opened.status().message();
    absl::ConsumePrefix(&cause, absl::StrCat(path, ": "));
    return absl::Status(opened.status().code(), absl::StrCat(what, ": ", cause));
  }
  descriptor_ = *opened;
  return absl::OkStatus();
}

absl::StatusOr<DurableFile> DurableFile::Create(const std::string& path, const FileOptions& options) {
  if (path.empty()) return absl::InvalidArgumentError("the name of the file to write is empty: name a file");
  struct stat found {};
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is a folder"));
    if (options.existing == FileOptions::kRefuse)
      return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  DurableFile file(path, PointsOf(path, options), options);
  if (const int error = file.Hit(".create")) return FileError(error, absl::StrCat("cannot create ", path));
  absl::Status status;
  std::string temporary;
  for (int i = 0; i < kNamesTried; ++i) {
    temporary = TemporaryOf(path);
    status = file.Open(temporary, options);
    if (!absl::IsAlreadyExists(status)) break;
  }
  if (!status.ok()) return status;
  file.temporary_ = std::move(temporary);
  if (options.mode.has_value() && fchmod(file.descriptor_, *options.mode) != 0) {
    return FileError(errno, absl::StrCat("setting the mode of ", file.temporary_));
  }
  return file;
}

absl::StatusOr<DurableFile> DurableFile::CreateInPlace(const std::string& path, const FileOptions& options) {
  if (path.empty()) return absl::InvalidArgumentError("the name of the file to write is empty: name a file");
  DurableFile file(path, PointsOf(path, options), options);
  if (const int error = file.Hit(".create")) return FileError(error, absl::StrCat("cannot create ", path));
  if (absl::Status status = file.Open(path, options); !status.ok()) return status;
  if (options.mode.has_value() && fchmod(file.descriptor_, *options.mode) != 0) {
    return FileError(errno, absl::StrCat("setting the mode of ", path));
  }
  return file;
}

absl::Status DurableFile::Write(std::string_view bytes) {
  absl::Status status;
  if (const int error = Hit(".write")) {
    status = FileError(error, absl::StrCat("writing ", path_));
  } else {
    size_t written = 0;
    status = WriteFully(descriptor_, path_, bytes, written);
    size_ += written;
  }
  if (!status.ok()) failed_ = true;
  return status;
}

absl::Status DurableFile::ReadBack(uint64_t offset, size_t length, char* out) const {
  while (length > 0) {
    const ssize_t got = pread(descriptor_, out, length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading back ", path_));
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, " became shorter while it was written"));
    out += got;
    offset += static_cast<uint64_t>(got);
    length -= static_cast<size_t>(got);
  }
  return absl::OkStatus();
}

absl::Status DurableFile::Overwrite(uint64_t offset, std::string_view bytes) {
  absl::Status status = WriteAt(descriptor_, path_, offset, bytes);
  if (!status.ok()) failed_ = true;
  return status;
}

absl::Status DurableFile::Truncate(uint64_t size) {
  const auto offset = static_cast<off_t>(size);
  if (ftruncate(descriptor_, offset) != 0 || lseek(descriptor_, offset, SEEK_SET) < 0) {
    failed_ = true;
    return FileError(errno, absl::StrCat("cutting ", path_));
  }
  size_ = size;
  return absl::OkStatus();
}

absl::Status DurableFile::Commit() {
  if (failed_) return absl::FailedPreconditionError(absl::StrCat(path_, ": an earlier write failed"));
  int error = Hit(".sync");
  if (error == 0 && fsync(descriptor_) != 0) error = errno;
  if (error != 0) return FileError(error, absl::StrCat("syncing ", path_));
  if (close(std::exchange(descriptor_, -1)) != 0) return FileError(errno, absl::StrCat("closing ", path_));
  if (temporary_.empty()) return absl::OkStatus();

  // Opened before the file appears: whoever waits for it may rename the folder at once.
  const std::string parent = ParentFolder(path_);
  const absl::StatusOr<int> folder = OpenFolder(parent);
  if (!folder.ok()) return folder.status();
  const absl::Cleanup closing = [&] { close(*folder); };
  error = Hit(".rename");
  if (error == 0) error = existing_ == FileOptions::kRefuse ? NameNew(temporary_, path_) : Replace(temporary_, path_);
  if (error == EEXIST) return absl::AlreadyExistsError(absl::StrCat(path_, " exists already"));
  if (error != 0) return CreateError(error, path_);  // users do not know the temporary name
  temporary_.clear();
  return SyncFolder(*folder, parent, absl::StrCat(points_, ".folder"));
}

absl::Status WriteDurably(const std::string& path, std::string_view content, const FileOptions& options) {
  absl::StatusOr<DurableFile> file = DurableFile::Create(path, options);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(content); !status.ok()) return status;
  return file->Commit();
}

absl::Status WriteInPlace(const std::string& path, std::string_view content, const FileOptions& options) {
  absl::StatusOr<DurableFile> file = DurableFile::CreateInPlace(path, options);
  if (!file.ok()) return file.status();
  if (absl::Status status = file->Write(content); !status.ok()) return status;
  return file->Commit();
}

absl::Status Rename(const std::string& from, const std::string& to, std::string_view point) {
  int error = failpoint::Hit(point);
  if (error == 0 && rename(from.c_str(), to.c_str()) != 0) error = errno;
  return error == 0 ? absl::OkStatus() : FileError(error, absl::StrCat("renaming ", from, " to ", to));
}

absl::Status SyncFile(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("opening ", path));
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : FileError(error, absl::StrCat("syncing ", path));
}

absl::Status SyncFolder(const std::string& folder, std::string_view point) {
  const absl::StatusOr<int> descriptor = OpenFolder(folder);
  if (!descriptor.ok()) return descriptor.status();
  const absl::Cleanup closing = [&] { close(*descriptor); };
  return SyncFolder(*descriptor, folder, point);
}

}  // namespace muster
