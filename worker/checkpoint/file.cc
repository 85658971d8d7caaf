#include "worker/checkpoint/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster::checkpoint {

absl::StatusOr<NewFile> NewFile::Create(const std::string& path) {
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return FileError(errno, absl::StrCat("creating ", path));
  return NewFile(path, descriptor);
}

NewFile::NewFile(NewFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      sha256_(std::move(other.sha256_)) {}

NewFile::~NewFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status NewFile::Write(std::string_view bytes) {
  sha256_->Update(bytes);
  while (!bytes.empty()) {
    const ssize_t written = write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return FileError(errno, absl::StrCat("writing ", path_));
    bytes.remove_prefix(written);
    bytes_ += written;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NewFile::Finish() {
  if (fsync(descriptor_) != 0) return FileError(errno, absl::StrCat("syncing ", path_));
  if (close(std::exchange(descriptor_, -1)) != 0) return FileError(errno, absl::StrCat("closing ", path_));
  return sha256_->FinishHex();
}

absl::StatusOr<ReadFile> ReadFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileError(errno, path);
  ReadFile file(path, descriptor);
  struct stat found;
  if (fstat(descriptor, &found) != 0) return FileError(errno, path);
  if (!S_ISREG(found.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": no regular file"));
  file.bytes_ = found.st_size;
  return file;
}

ReadFile::ReadFile(ReadFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), bytes_(other.bytes_) {}

ReadFile::~ReadFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::Status ReadFile::Read(uint64_t offset, uint64_t length, char* out) const {
  while (length > 0) {
    const ssize_t got = pread(descriptor_, out, length, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, ": ends at byte ", offset, ": it was cut"));
    out += got;
    offset += got;
    length -= got;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadFile::Sha256Hex() const {
  Sha256 sha;
  std::string part;
  for (uint64_t offset = 0; offset < bytes_; offset += part.size()) {
    part.resize(std::min<uint64_t>(4 << 20, bytes_ - offset));
    if (absl::Status status = Read(offset, part.size(), part.data()); !status.ok()) return status;
    sha.Update(part);
  }
  return sha.FinishHex();
}

absl::StatusOr<std::string> ReadText(const std::string& path, uint64_t max_bytes) {
  absl::StatusOr<ReadFile> file = ReadFile::Open(path);
  if (!file.ok()) return file.status();
  if (file->bytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is too large: ", file->bytes(), " bytes"));
  }
  std::string text(file->bytes(), '\0');
  if (absl::Status status = file->Read(0, text.size(), text.data()); !status.ok()) return status;
  return text;
}

absl::Status SyncDirectory(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, absl::StrCat("opening folder ", path));
  const int error = fsync(descriptor) == 0 ? 0 : errno;
  close(descriptor);
  return error == 0 ? absl::OkStatus() : FileError(error, absl::StrCat("syncing folder ", path));
}

}  // namespace muster::checkpoint
