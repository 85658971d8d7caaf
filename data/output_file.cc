#include "data/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster::data {

std::string DirectoryOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SyncDirectory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("opening folder ", path));
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : FileError(error, absl::StrCat("syncing folder ", path));
}

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path, Existing existing) {
  struct stat found;
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) return absl::FailedPreconditionError(absl::StrCat(path, " is a folder"));
    if (existing == Existing::kRefuse) return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  const std::string prefix =
      absl::StrCat(DirectoryOf(path), "/.", path.substr(path.rfind('/') + 1), ".", getpid(), ".");
  std::string temporary;
  int descriptor = -1;
  // A second number is only needed if a killed process with the same pid left its file.
  for (int i = 0; descriptor < 0 && i < 100; ++i) {
    temporary = absl::StrCat(prefix, i, ".part");
    descriptor = open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0 && errno != EEXIST) break;
  }
  if (descriptor < 0) return FileError(errno, absl::StrCat("creating ", temporary));
  return OutputFile(path, std::move(temporary), descriptor, existing);
}

OutputFile::OutputFile(std::string path, std::string temporary, int descriptor, Existing existing)
    : path_(std::move(path)), temporary_(std::move(temporary)), descriptor_(descriptor), existing_(existing) {}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      descriptor_(std::exchange(other.descriptor_, -1)),
      existing_(other.existing_),
      size_(other.size_),
      failed_(other.failed_) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

absl::Status OutputFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      failed_ = true;
      return FileError(errno, absl::StrCat("writing ", path_));
    }
    bytes.remove_prefix(written);
    size_ += written;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::ReadBack(uint64_t offset, size_t length, char* out) const {
  while (length > 0) {
    const ssize_t got = pread(descriptor_, out, length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading back ", path_));
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, " became shorter while it was written"));
    out += got;
    offset += got;
    length -= got;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Overwrite(uint64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      failed_ = true;
      return FileError(errno, absl::StrCat("writing ", path_));
    }
    bytes.remove_prefix(written);
    offset += written;
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Truncate(uint64_t size) {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) {
    failed_ = true;
    return FileError(errno, absl::StrCat("cutting ", path_));
  }
  size_ = size;
  if (lseek(descriptor_, static_cast<off_t>(size), SEEK_SET) < 0)
    return FileError(errno, absl::StrCat("cutting ", path_));
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  if (failed_) return absl::FailedPreconditionError(absl::StrCat(path_, ": an earlier write failed"));
  if (fsync(descriptor_) != 0) return FileError(errno, absl::StrCat("syncing ", path_));
  const unsigned flags = existing_ == Existing::kRefuse ? RENAME_NOREPLACE : 0;
  int result = renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, path_.c_str(), flags);
  // Some network file systems do not support the flags.
  if (result != 0 && errno == EINVAL && flags != 0) result = rename(temporary_.c_str(), path_.c_str());
  if (result != 0 && errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(path_, " exists already"));
  if (result != 0) return FileError(errno, absl::StrCat("renaming ", temporary_, " to ", path_));
  temporary_.clear();
  return SyncDirectory(DirectoryOf(path_));
}

}  // namespace muster::data
