#include "checkpoint/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/crc32c.h"
#include "common/file/beneath.h"
#include "common/file_error.h"

namespace muster::checkpoint {

namespace {

// Small enough that checksummed bytes are still in the cache when they are written.
constexpr uint64_t kSlice = 1 << 20;

}  // namespace

absl::StatusOr<NewFile> NewFile::Create(const std::string& path, std::string_view points) {
  absl::StatusOr<DurableFile> file = DurableFile::CreateInPlace(path, {.points = points});
  if (!file.ok()) return file.status();
  return NewFile(*std::move(file));
}

absl::Status NewFile::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    uint64_t length = std::min<uint64_t>(bytes.size(), kSlice);
    if (block_bytes_ > 0) length = std::min(length, block_bytes_ - in_block_);
    if (absl::Status status = WriteSlice(bytes.substr(0, length)); !status.ok()) return status;
    bytes.remove_prefix(length);
  }
  return absl::OkStatus();
}

absl::Status NewFile::WriteSlice(std::string_view slice) {
  sha256_->Update(slice);
  crc_ = ExtendCrc32c(crc_, slice);
  in_block_ += slice.size();
  if (block_bytes_ > 0 && in_block_ == block_bytes_) EndBlock();
  return file_.Write(slice);
}

void NewFile::BeginBlocks(uint64_t block_bytes) {
  EndBlock();
  block_bytes_ = block_bytes;
}

void NewFile::EndBlock() {
  blocks_.push_back(std::exchange(crc_, 0));
  in_block_ = 0;
}

absl::StatusOr<std::string> NewFile::Finish() {
  if (block_bytes_ > 0 && in_block_ > 0) EndBlock();
  if (absl::Status status = file_.Commit(); !status.ok()) return status;
  return sha256_->FinishHex();
}

absl::StatusOr<ReadFile> ReadFile::Open(const std::string& path) {
  const absl::StatusOr<int> opened = OpenConfined(FileUse::kRead, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (!opened.ok()) return opened.status();
  ReadFile file(path, *opened);
  struct stat found;
  if (fstat(*opened, &found) != 0) return FileError(errno, path);
  if (!S_ISREG(found.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
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
  std::string chunk;
  for (uint64_t offset = 0; offset < bytes_; offset += chunk.size()) {
    chunk.resize(std::min<uint64_t>(4 << 20, bytes_ - offset));
    if (absl::Status status = Read(offset, chunk.size(), chunk.data()); !status.ok()) return status;
    sha.Update(chunk);
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

absl::Status AsDamage(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return absl::DataLossError(status.message());
    default:
      return status;
  }
}

}  // namespace muster::checkpoint
