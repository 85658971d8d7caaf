#include "worker/data/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/file_error.h"

namespace muster::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read without swapping bytes");

constexpr size_t kScanTokens = 1 << 19;

absl::Status CheckSize(const std::string& path, const struct stat& found, uint64_t context) {
  const uint64_t bytes = found.st_size;
  if (!S_ISREG(found.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file"));
  if (bytes == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is empty: was `muster data prepare` interrupted, or the disk full?"));
  }
  if (bytes % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, " has ", bytes,
                                                   " bytes, an odd number, but a token file holds two bytes per token: "
                                                   "it was cut, or is plain text (see `muster data prepare`)"));
  }
  if (bytes / 2 < context + 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds ", bytes / 2, " tokens, but one sample needs ",
                                                   context + 1,
                                                   " (context + 1): use a longer text or a smaller model.context"));
  }
  return absl::OkStatus();
}

}  // namespace

TokenFile::TokenFile(std::string path, int descriptor, uint64_t tokens)
    : path_(std::move(path)), descriptor_(descriptor), tokens_(tokens) {}

TokenFile::TokenFile(TokenFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), tokens_(other.tokens_) {}

TokenFile::~TokenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<TokenFile> TokenFile::Open(const std::string& path, uint64_t context) {
  // O_NONBLOCK: a pipe by mistake is refused below instead of waited for.
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file on this machine (paths are those of the worker)"));
  }
  if (descriptor < 0) return FileError(errno, path);
  TokenFile file(path, descriptor, 0);
  struct stat found;
  if (fstat(descriptor, &found) != 0) return FileError(errno, path);
  if (absl::Status status = CheckSize(path, found, context); !status.ok()) return status;
  file.tokens_ = found.st_size / 2;

  // llm.c's files: int32 magic, int32 version.
  uint16_t head[4] = {};
  const size_t headed = std::min<uint64_t>(file.tokens_, 4);
  if (absl::Status status = file.Read(0, absl::MakeSpan(head, headed)); !status.ok()) return status;
  const uint32_t magic = head[0] | uint32_t{head[1]} << 16;
  const uint32_t version = head[2] | uint32_t{head[3]} << 16;
  if (magic == 20240520 && version == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has llm.c's header; cut it off to have a plain token file: tail -c +1025 ", path, " > plain.bin"));
  }
  if (magic == 20240801 && version == 7) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is a token file of llm.c with 4 bytes per token, which is not supported"));
  }
  return file;
}

absl::Status TokenFile::Read(uint64_t begin, absl::Span<uint16_t> out) const {
  char* into = reinterpret_cast<char*>(out.data());
  size_t left = out.size() * 2;
  off_t offset = static_cast<off_t>(begin * 2);
  while (left > 0) {
    const ssize_t got = pread(descriptor_, into, left, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, " became shorter than ", tokens_, " tokens"));
    into += got;
    offset += got;
    left -= got;
  }
  return absl::OkStatus();
}

absl::Status TokenFile::CheckVocabulary(uint64_t vocabulary) const {
  if (vocabulary > UINT16_MAX) return absl::OkStatus();
  std::vector<uint16_t> part;
  for (uint64_t begin = 0; begin < tokens_; begin += kScanTokens) {
    part.resize(std::min<uint64_t>(kScanTokens, tokens_ - begin));
    if (absl::Status status = Read(begin, absl::MakeSpan(part)); !status.ok()) return status;
    const auto bad = std::find_if(part.begin(), part.end(), [&](uint16_t token) { return token >= vocabulary; });
    if (bad != part.end()) {
      return absl::OutOfRangeError(absl::StrCat(
          path_, ": token ", *bad, " at position ", begin + (bad - part.begin()), " is not below the vocabulary of ",
          vocabulary, ": the file was made with another tokenizer, or model.vocabulary is too small"));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::data
