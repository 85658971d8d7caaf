// What made the tokens of a token file, in a small file beside it: train.bin.tokenizer.json. With it, checkpoints know
// which tokenizer turns their model's tokens into text.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "proto/manifest.pb.h"

namespace muster::data {

inline constexpr char kOriginEnding[] = ".tokenizer.json";

// Replaces that of an earlier token file, and gets the mode of `token_file`. Errors as WriteDurably.
absl::Status WriteTokenizerOrigin(const std::string& token_file, TokenizerOrigin origin);

// Of the files that the pattern matches (file_pattern.h). None: one has none, or they differ, or a token file was
// replaced by something else.
std::optional<TokenizerOrigin> ReadTokenizerOrigin(const std::string& pattern);

}  // namespace muster::data
