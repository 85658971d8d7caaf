#include "data/images/prepare/idx_file.h"

#include <errno.h>
#include <zlib.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster::data {
namespace {

constexpr uint8_t kUnsignedByte = 8;  // the format's code of this type
constexpr size_t kMostTaken = 1 << 30;

absl::Status WrongIdx(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

}  // namespace

IdxFile::IdxFile(IdxFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, nullptr)), sizes_(std::move(other.sizes_)) {}

IdxFile::~IdxFile() {
  if (file_ != nullptr) gzclose_r(static_cast<gzFile>(file_));
}

absl::StatusOr<IdxFile> IdxFile::Open(const std::string& path, uint32_t dimensions) {
  errno = 0;
  gzFile opened = gzopen(path.c_str(), "rbe");
  if (opened == nullptr && errno == ENOENT) return absl::NotFoundError(absl::StrCat(path, ": no such file"));
  if (opened == nullptr) return FileError(errno == 0 ? ENOMEM : errno, path);
  IdxFile file(path, opened);
  uint8_t magic[4];
  absl::StatusOr<size_t> got = file.Take(absl::MakeSpan(magic));
  if (!got.ok()) return got.status();
  if (*got < 4 || magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte || magic[3] != dimensions) {
    return WrongIdx(path, absl::StrCat(" is not an idx file of ", dimensions == 1 ? "labels" : "images",
                                       ": expected the bytes 0 0 8 ", dimensions, " first, as in MNIST's",
                                       *got == 4 && magic[3] == 1 && dimensions == 3
                                           ? "; these are labels: are the two files exchanged?"
                                           : ""));
  }
  std::vector<uint8_t> sizes(size_t{4} * dimensions);
  got = file.Take(absl::MakeSpan(sizes));
  if (!got.ok()) return got.status();
  if (*got < sizes.size()) return WrongIdx(path, " ends within its header: it was cut");
  for (const uint8_t* at = sizes.data(); at != sizes.data() + sizes.size(); at += 4) {
    file.sizes_.push_back(uint32_t{at[0]} << 24 | uint32_t{at[1]} << 16 | uint32_t{at[2]} << 8 | at[3]);
  }
  return file;
}

// Fewer bytes than asked for: the end.
absl::StatusOr<size_t> IdxFile::Take(absl::Span<uint8_t> out) {
  const auto file = static_cast<gzFile>(file_);
  size_t taken = 0;
  while (taken < out.size()) {
    errno = 0;
    const int got = gzread(file, out.data() + taken, static_cast<unsigned>(std::min(out.size() - taken, kMostTaken)));
    if (got < 0) {
      int code = Z_OK;
      const char* message = gzerror(file, &code);
      if (code == Z_ERRNO) return FileError(errno, absl::StrCat("reading ", path_));
      return WrongIdx(path_, absl::StrCat(": its compression is broken: ", message));
    }
    if (got == 0) break;
    taken += got;
  }
  return taken;
}

absl::Status IdxFile::Read(absl::Span<uint8_t> out) {
  const absl::StatusOr<size_t> got = Take(out);
  if (!got.ok()) return got.status();
  if (*got == out.size()) return absl::OkStatus();
  return WrongIdx(path_, absl::StrCat(" ends before the ", sizes_[0], " entries of its header: it was cut"));
}

absl::Status IdxFile::CheckEnd() {
  uint8_t more;
  const absl::StatusOr<size_t> got = Take(absl::MakeSpan(&more, 1));
  if (!got.ok()) return got.status();
  if (*got != 0) return WrongIdx(path_, absl::StrCat(" has more than the ", sizes_[0], " entries of its header"));
  return absl::OkStatus();
}

}  // namespace muster::data
