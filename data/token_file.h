// A job's tokens: one file, or several shards as one stream, in the formats of token_shard.h.
//
//   auto file = TokenFile::Open("train_*.bin", /*context=*/128).value();
//   file.CheckVocabulary(256);
//
// Shards of any formats and widths are concatenated in byte order of their paths; a sample may
// begin in one and end in the next, as it may cross documents within one.
// Thread-safe: no method changes the object.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/token_shard.h"

namespace muster::data {

class TokenFile {
 public:
  // `pattern`: a path, or one with * ? [ ] as in a shell (a file of that very name goes first).
  // `context`: of the model that will read it; the stream must hold at least one sample of context + 1 tokens.
  // NotFound: no file matches. InvalidArgument: too short for one sample. Else as TokenShard::Open.
  static absl::StatusOr<TokenFile> Open(const std::string& pattern, uint64_t context);

  const std::vector<TokenShard>& shards() const { return shards_; }  // at least one
  uint64_t tokens() const { return ends_.back(); }

  // Fills `out` with the tokens from `begin` on. REQUIRES: begin + out.size() <= tokens().
  // DataLoss: a file became shorter since Open, or the disk fails.
  absl::Status Read(uint64_t begin, absl::Span<uint32_t> out) const;

  // OutOfRange: a token id at or above `vocabulary`; names the first one, its file and its position there. Reads
  // everything, unless the files' width alone says that it fits; of more than `most_bytes` about so many, in blocks of
  // 1 MiB spread over the stream.
  absl::Status CheckVocabulary(uint64_t vocabulary, uint64_t most_bytes = UINT64_MAX) const;

 private:
  TokenFile() = default;

  std::vector<TokenShard> shards_;
  std::vector<uint64_t> ends_;  // of each shard in the stream
};

}  // namespace muster::data
