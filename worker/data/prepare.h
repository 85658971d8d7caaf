// Makes token files from text, and says what is in one: `muster data prepare` and `muster data inspect`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"

namespace muster::data {

struct PrepareOptions {
  std::string text;                  // a file, or "-" for standard input; its bytes are the tokens (vocabulary 256)
  std::string out;                   // token file to write
  std::string validation_out;        // second token file for the end of the text; empty: no split
  double validation_fraction = 0.1;  // of the tokens, from the end; only with validation_out
  bool force = false;                // replace files that exist
  // Called now and then, and at the end: bytes read, and the size of the text (0: not known).
  std::function<void(uint64_t done, uint64_t total)> progress;
};

struct Prepared {
  uint64_t tokens = 0;             // in `out`
  uint64_t validation_tokens = 0;  // in `validation_out`
};

// Streams: memory does not grow with the text. Files appear whole or not at all; after an error none of ours is left.
// NotFound: no such text; AlreadyExists: an output exists and `force` is not set; InvalidArgument: the text is empty,
// the fraction is not in (0, 1) or leaves one side empty, or two of the paths are the same file; ResourceExhausted:
// disk full.
absl::StatusOr<Prepared> Prepare(const PrepareOptions& options);

struct Inspection {
  uint64_t tokens = 0;
  uint64_t bytes = 0;
  uint16_t smallest = 0;  // token id
  uint16_t largest = 0;
  uint64_t distinct = 0;
  double entropy_bits = 0;  // per token, of the ids' frequencies: a model that knows only these has this loss, in bits
  std::string beginning;    // up to 256 tokens as text, what is not printable as '.'; empty if an id is over 255
};

// Errors as TokenFile::Open.
absl::StatusOr<Inspection> Inspect(const std::string& path);

}  // namespace muster::data
