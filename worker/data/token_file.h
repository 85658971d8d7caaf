// A token file as nanoGPT writes it: little-endian uint16 token ids one after another, no header.
//
//   auto file = TokenFile::Open("train.bin", /*context=*/128).value();
//   file.CheckVocabulary(256);
//
// Read by pread and not by mapping: the page cache serves both, but a file that is cut or a disk that fails while a job
// trains is an error here and a SIGBUS there. Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace muster::data {

class TokenFile {
 public:
  // `context`: of the model that will read it; the file must hold at least one sample of context + 1 tokens.
  // NotFound, PermissionDenied: as open(2). InvalidArgument: empty, an odd number of bytes, too short for one sample,
  // no regular file, or another format (llm.c's header). Messages begin with the path.
  static absl::StatusOr<TokenFile> Open(const std::string& path, uint64_t context);
  TokenFile(TokenFile&& other) noexcept;
  TokenFile& operator=(TokenFile&&) = delete;
  ~TokenFile();

  const std::string& path() const { return path_; }
  uint64_t tokens() const { return tokens_; }

  // Fills `out` with the tokens from `begin` on. REQUIRES: begin + out.size() <= tokens().
  // DataLoss: the file became shorter since Open, or the disk fails.
  absl::Status Read(uint64_t begin, absl::Span<uint16_t> out) const;

  // OutOfRange: a token id at or above `vocabulary`; names the first one and its position. Reads the whole file.
  absl::Status CheckVocabulary(uint64_t vocabulary) const;

 private:
  TokenFile(std::string path, int descriptor, uint64_t tokens);

  std::string path_;
  int descriptor_;
  uint64_t tokens_;
};

}  // namespace muster::data
