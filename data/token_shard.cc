#include "data/token_shard.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/counted.h"
#include "common/file/beneath.h"
#include "common/file_error.h"
#include "data/megatron_index.h"

namespace muster::data {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are read without swapping bytes");

constexpr uint64_t kScanBytes = 1 << 20;
constexpr size_t kBlock = 4096;            // tokens looked at together
constexpr size_t kTextEvidenceBytes = 64;  // fewer may be tokens that look like letters by chance

absl::Status Wrong(const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(path, what));
}

constexpr char kExpected[] =
    "; expected token ids: nanoGPT's headerless uint16, llm.c's with its header, or Megatron's .idx and .bin";

// Guesses what a file in none of the formats is; empty: unknown.
std::string Foreign(std::string_view head) {
  const std::pair<std::string_view, const char*> kinds[] = {
      {"\x1f\x8b", "compressed by gzip (gunzip it)"},
      {"PK\x03\x04", "a zip archive, or a PyTorch checkpoint"},
      {"\x93NUMPY", "a NumPy array (write its values with .astype('uint16').tofile)"},
      {"PAR1", "a Parquet table"},
      {"\x89HDF", "an HDF5 file"},
      {std::string_view("\x28\xb5\x2f\xfd", 4), "compressed by zstd"},
      {std::string_view("ARROW1\0", 7), "an Arrow file"},
  };
  for (const auto& [magic, name] : kinds) {
    if (absl::StartsWith(absl::string_view(head.data(), head.size()), absl::string_view(magic.data(), magic.size())))
      return name;
  }
  if (head.size() < kTextEvidenceBytes) return "";
  const bool text = std::all_of(head.begin(), head.end(), [](unsigned char c) {
    return c >= 0x80 || (c >= ' ' && c < 127) || c == '\n' || c == '\r' || c == '\t';
  });
  const auto high = std::count_if(head.begin(), head.end(), [](unsigned char c) { return c >= 0x80; });
  return text && high * 4 < static_cast<ptrdiff_t>(head.size()) ? "plain text (muster data prepare makes tokens of it)"
                                                                : "";
}

uint64_t Word(const char* at) {
  uint32_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
void Widen(const char* raw, absl::Span<uint32_t> out) {
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, raw + i * sizeof(T), sizeof(T));
    const bool fits = sizeof(T) < 4 || static_cast<uint64_t>(value) <= UINT32_MAX;
    out[i] = value < 0 || !fits ? UINT32_MAX : static_cast<uint32_t>(value);
  }
}

// Index of the first of `count` tokens at or above `limit`, else `count`. Whole blocks are compared without a branch,
// so that the compiler vectorizes the loop.
template <typename T>
size_t FirstOutside(const T* tokens, size_t count, uint64_t limit) {
  using Unsigned = std::make_unsigned_t<T>;  // a negative id is above every vocabulary
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const T* block = tokens + begin;
    const size_t size = std::min(kBlock, count - begin);
    Unsigned largest = 0;
    if (size == kBlock) {
      for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, static_cast<Unsigned>(block[i]));
    }
    if (size == kBlock && largest < limit) continue;
    for (size_t i = 0; i < size; ++i) {
      if (static_cast<Unsigned>(block[i]) >= limit) return begin + i;
    }
  }
  return count;
}

bool IsRegular(const std::string& path) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode);
}

}  // namespace

const char* FormatName(TokenFormat format) {
  switch (format) {
    case TokenFormat::kLlmC:
      return "llmc";
    case TokenFormat::kMegatron:
      return "megatron";
    default:
      return "nanogpt";
  }
}

TokenShard::TokenShard(TokenShard&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      format_(other.format_),
      width_(other.width_),
      offset_(other.offset_),
      tokens_(other.tokens_),
      bytes_(other.bytes_),
      documents_(other.documents_) {}

TokenShard::~TokenShard() {
  if (descriptor_ >= 0) close(descriptor_);
}

absl::StatusOr<TokenShard> TokenShard::Open(const std::string& path) {
  std::string stem = path;
  if (absl::EndsWith(path, ".idx") || absl::EndsWith(path, ".bin")) stem.resize(path.size() - 4);
  const std::string index = stem + ".idx";
  const bool megatron = (absl::EndsWith(path, ".idx") || IsRegular(index)) && (stem != path || !IsRegular(path)) &&
                        LooksLikeMegatronIndex(index);
  const std::string data = megatron ? stem + ".bin" : path;
  // O_NONBLOCK: a pipe is refused below instead of blocking here.
  const absl::StatusOr<int> opened = OpenConfined(FileUse::kData, data, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (absl::IsNotFound(opened.status())) {
    return absl::NotFoundError(megatron
                                   ? absl::StrCat(data, ": no such file, but ", index, " is Megatron's index of it")
                                   : absl::StrCat(data, ": no such file on this machine"));
  }
  if (!opened.ok()) return opened.status();
  TokenShard shard(data, *opened);
  struct stat found;
  if (fstat(*opened, &found) != 0) return FileError(errno, data);
  if (!S_ISREG(found.st_mode)) return Wrong(data, " is not a regular file");
  shard.bytes_ = found.st_size;
  const absl::Status status = megatron ? shard.OpenIndex(index) : shard.Recognise(found.st_size);
  if (!status.ok()) return status;
  return shard;
}

absl::Status TokenShard::OpenIndex(const std::string& index) {
  const absl::StatusOr<MegatronIndex> read = ReadMegatronIndex(index);
  if (!read.ok()) return read.status();
  format_ = TokenFormat::kMegatron;
  width_ = read->width;
  tokens_ = read->tokens;
  documents_ = read->documents;
  if (bytes_ != tokens_ * width_) {
    return Wrong(path_, absl::StrCat(" has ", bytes_, " bytes, but ", index, " lists ", tokens_, " tokens of ", width_,
                                     " bytes, ", tokens_ * width_, " in all: ",
                                     bytes_ < tokens_ * width_ ? "it was cut" : "they do not belong together"));
  }
  bytes_ += read->bytes;
  return absl::OkStatus();
}

absl::Status TokenShard::Recognise(uint64_t size) {
  if (size == 0) return Wrong(path_, " is empty: was `muster data prepare` interrupted, or the disk full?");
  std::string head(std::min<uint64_t>(size, 4096), '\0');
  width_ = 1;
  if (absl::Status status = ReadRaw(0, head.size(), head.data()); !status.ok()) return status;
  width_ = 2;
  const uint64_t magic = head.size() >= 4 ? Word(head.data()) : 0;
  if (magic == kLlmCMagic16 || magic == kLlmCMagic32) {
    const uint64_t version = magic == kLlmCMagic16 ? kLlmCVersion16 : kLlmCVersion32;
    if (size < kLlmCHeaderBytes) {
      return Wrong(path_, absl::StrCat(" begins like a token file of llm.c, but has ", size, " bytes, less than its ",
                                       kLlmCHeaderBytes, " bytes of header: it was cut"));
    }
    if (Word(head.data() + 4) != version) {
      return Wrong(path_, absl::StrCat(" has llm.c's magic ", magic, " with version ", Word(head.data() + 4),
                                       ", expected version ", version));
    }
    format_ = TokenFormat::kLlmC;
    width_ = magic == kLlmCMagic16 ? 2 : 4;
    offset_ = kLlmCHeaderBytes;
    tokens_ = Word(head.data() + 8);
    const uint64_t expected = offset_ + tokens_ * width_;
    if (size == expected) return absl::OkStatus();
    return Wrong(path_,
                 absl::StrCat(" has ", size, " bytes, but its header says ", tokens_, " tokens of ", width_,
                              " bytes, which makes ", expected, ": it was ", size < expected ? "cut" : "added to"));
  }
  if (absl::StartsWith(head, absl::string_view("MMIDIDX", 7))) {
    return Wrong(path_, " is a Megatron index; it must be called X.idx and lie beside X.bin, which holds the tokens");
  }
  if (const std::string foreign = Foreign(head); !foreign.empty()) {
    return Wrong(path_, absl::StrCat(" is ", foreign, kExpected));
  }
  if (size % 2 != 0) {
    return Wrong(path_, absl::StrCat(" has ", Counted(size, "byte", "bytes"),
                                     ", an odd number, but without a header a token takes two: ",
                                     "it was cut, or is plain text (see `muster data prepare`)", kExpected));
  }
  tokens_ = size / 2;
  return absl::OkStatus();
}

absl::Status TokenShard::ReadRaw(uint64_t begin, uint64_t tokens, char* out) const {
  uint64_t left = tokens * width_;
  auto offset = static_cast<off_t>(offset_ + begin * width_);
  while (left > 0) {
    const ssize_t got = pread(descriptor_, out, left, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, absl::StrCat("reading ", path_));
    if (got == 0) return absl::DataLossError(absl::StrCat(path_, " became shorter than ", tokens_, " tokens"));
    out += got;
    offset += got;
    left -= got;
  }
  return absl::OkStatus();
}

absl::Status TokenShard::Read(uint64_t begin, absl::Span<uint32_t> out) const {
  std::vector<char> raw(out.size() * width_);
  if (absl::Status status = ReadRaw(begin, out.size(), raw.data()); !status.ok()) return status;
  if (width_ == 1) Widen<uint8_t>(raw.data(), out);
  if (width_ == 2) Widen<uint16_t>(raw.data(), out);
  if (width_ == 4) Widen<int32_t>(raw.data(), out);
  if (width_ == 8) Widen<int64_t>(raw.data(), out);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> TokenShard::FindOutside(uint64_t vocabulary, uint64_t begin, uint64_t end) const {
  if (width_ < 4 && vocabulary >> (8 * width_) > 0) return tokens_;
  const uint64_t batch = kScanBytes / width_;
  std::vector<uint64_t> raw(kScanBytes / sizeof(uint64_t));
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
  for (end = std::min(end, tokens_); begin < end; begin += batch) {
    const uint64_t count = std::min(batch, end - begin);
    absl::Status status = ReadRaw(begin, count, reinterpret_cast<char*>(raw.data()));
    if (!status.ok()) return status;
    size_t found = count;
    if (width_ == 1) found = FirstOutside(reinterpret_cast<const uint8_t*>(raw.data()), count, vocabulary);
    if (width_ == 2) found = FirstOutside(reinterpret_cast<const uint16_t*>(raw.data()), count, vocabulary);
    if (width_ == 4) found = FirstOutside(reinterpret_cast<const uint32_t*>(raw.data()), count, vocabulary);
    if (width_ == 8) found = FirstOutside(reinterpret_cast<const uint64_t*>(raw.data()), count, vocabulary);
    if (found < count) return begin + found;
  }
  return tokens_;
}

}  // namespace muster::data
