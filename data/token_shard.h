// A file of token ids in one of three formats, which are recognized by content.
//
//   nanogpt   headerless little-endian uint16
//   llmc      256 int32 of header: magic 20240520, version 1, count; then uint16. Or 20240801, 7, count; then uint32
//   megatron  X.idx ("MMIDIDX\0\0", version 1, dtype, lengths and places of the sequences) beside X.bin
//
//   auto shard = TokenShard::Open("train.bin").value();
//   shard.Read(0, tokens);
//
// Reads with pread instead of mmap: both use the page cache, but a truncated file or a failing disk is an error with
// pread and a SIGBUS with mmap. Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster::data {

enum class TokenFormat { kNanoGpt, kLlmC, kMegatron };

// "nanogpt", "llmc", "megatron"
const char* FormatName(TokenFormat format);

inline constexpr uint64_t kLlmCHeaderBytes = 1024;
inline constexpr uint32_t kLlmCMagic16 = 20240520, kLlmCVersion16 = 1;
inline constexpr uint32_t kLlmCMagic32 = 20240801, kLlmCVersion32 = 7;

class TokenShard {
 public:
  // Megatron: `path` may be X.idx, X.bin or X. An empty shard of a format with a header is allowed.
  // NotFound, PermissionDenied: as open(2). InvalidArgument: empty, cut, no regular file, or of another format; says
  // what was expected and what was found. Messages begin with the path.
  static absl::StatusOr<TokenShard> Open(const std::string& path);
  TokenShard(TokenShard&& other) noexcept;
  TokenShard& operator=(TokenShard&&) = delete;
  ~TokenShard();

  const std::string& path() const { return path_; }  // of the file with the tokens
  TokenFormat format() const { return format_; }
  uint32_t width() const { return width_; }  // bytes of a token: 1, 2, 4 or 8
  uint64_t tokens() const { return tokens_; }
  uint64_t bytes() const { return bytes_; }          // of its files
  uint64_t documents() const { return documents_; }  // megatron; 0: the format does not say

  // Fills `out` with the tokens from `begin` on; an id that 32 bits do not hold, or below 0, becomes UINT32_MAX.
  // REQUIRES: begin + out.size() <= tokens(). DataLoss: the file became shorter since Open, or the disk fails.
  absl::Status Read(uint64_t begin, absl::Span<uint32_t> out) const;

  // Position of the first token at or above `vocabulary` among [begin, end) and below tokens(); tokens() if there is
  // none. Reads as fast as the disk: no token is widened. Errors as Read.
  absl::StatusOr<uint64_t> FindOutside(uint64_t vocabulary, uint64_t begin = 0, uint64_t end = UINT64_MAX) const;

 private:
  TokenShard(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  absl::Status ReadRaw(uint64_t begin, uint64_t tokens, char* out) const;
  absl::Status Recognise(uint64_t size);
  absl::Status OpenIndex(const std::string& index);

  std::string path_;
  int descriptor_;
  TokenFormat format_ = TokenFormat::kNanoGpt;
  uint32_t width_ = 2;
  uint64_t offset_ = 0;  // of the first token in the file
  uint64_t tokens_ = 0;
  uint64_t bytes_ = 0;
  uint64_t documents_ = 0;
};

}  // namespace muster::data
