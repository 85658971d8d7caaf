// Makes token files from text and inspects token files: `muster data prepare` and `muster data inspect`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/token_shard.h"
#include "data/tokenizer.h"

namespace muster::data {

struct PrepareOptions {
  std::vector<std::string> texts;              // files, concatenated in order, or "-" for standard input
  std::string out;                             // token file to write
  TokenFormat format = TokenFormat::kNanoGpt;  // or kLlmC: 2 bytes a token, 4 if the vocabulary needs them
  Tokenizer* tokenizer = nullptr;              // null: bytes are tokens (vocabulary 256); not owned
  bool end_of_text = false;                    // end each text with the tokenizer's end_of_text()
  std::string validation_out;                  // second token file for the end of the text; empty: no split
  double validation_fraction = 0.1;            // of the tokens, from the end; only with validation_out
  bool force = false;                          // replace files that exist
  // Called periodically and at the end: bytes read, and the size of the texts (0: unknown).
  std::function<void(uint64_t done, uint64_t total)> progress;
  // Asked several times a second; true ends it with Cancelled, and leaves no file.
  std::function<bool()> interrupted;
};

struct Prepared {
  uint64_t tokens = 0;             // in `out`
  uint64_t validation_tokens = 0;  // in `validation_out`
  uint64_t bytes_left_out = 0;     // the tokenizer has no token for them
};

// Each text is encoded as the `tokenizers` package does by default, with the special tokens that the tokenizer's
// template puts before and after it. Streams: memory does not grow with the texts, but for what Tokenizer::EncodePart
// names. Files appear complete or not at all; after an error no file is left. NotFound: no such text; AlreadyExists: an
// output exists and `force` is not set; InvalidArgument: the texts are empty or token files, the fraction is not in (0,
// 1) or leaves one side empty, two of the paths are the same file, or the format cannot hold the vocabulary's ids;
// Cancelled: interrupted; ResourceExhausted: disk full, or as Tokenizer::Encode; OutOfRange: more tokens than llm.c's
// header can say.
absl::StatusOr<Prepared> Prepare(const PrepareOptions& options);

struct Shard {
  std::string path;
  std::string format;  // "nanogpt", "llmc", "megatron"
  uint32_t width = 0;  // bytes of a token
  uint64_t tokens = 0;
  uint64_t documents = 0;  // 0: the format does not say
};

struct Inspection {
  std::vector<Shard> shards;
  uint64_t tokens = 0;
  uint64_t bytes = 0;     // of the files
  uint32_t smallest = 0;  // token id
  uint32_t largest = 0;
  uint64_t distinct = 0;
  double entropy_bits = 0;  // per token, of the ids' frequencies: a model that knows only these has this loss, in bits
  std::vector<uint32_t> first;  // up to 256 tokens
};

// `pattern` and errors as TokenFile::Open. Reads everything.
absl::StatusOr<Inspection> Inspect(const std::string& pattern);

// Tokens as text: by `tokenizer`, or (null) as bytes; what is not printable ASCII or part of a UTF-8 character as '.'.
// Empty: an id has no meaning there.
std::string Readable(absl::Span<const uint32_t> tokens, const Tokenizer* tokenizer);

}  // namespace muster::data
