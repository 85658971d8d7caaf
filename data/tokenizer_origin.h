// What made the tokens of a token file, in a small file beside it: train.bin.tokenizer.json. With it, checkpoints know
// which tokenizer turns their model's tokens into text.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/manifest.pb.h"

namespace muster::data {

inline constexpr char kOriginEnding[] = ".tokenizer.json";

// Replaces that of an earlier token file, and gets the mode of `token_file`. Errors as WriteDurably.
absl::Status WriteTokenizerOrigin(const std::string& token_file, TokenizerOrigin origin);

// Of the files that the pattern matches (file_pattern.h). None: one has none, or a token file was replaced by something
// else. InvalidArgument: two files have different ones; names both.
absl::StatusOr<std::optional<TokenizerOrigin>> ReadTokenizerOrigin(const std::string& pattern);

// "the tokenizer /gpt2 (sha256 0123abcd)", or "bytes as tokens".
std::string DescribeTokenizer(const TokenizerOrigin& origin);

// InvalidArgument: the files of `pattern` were not made with the tokenizer of `other` ("/train.bin", "the data of
// runs/a"), so that the same ids mean other text; names both. OK also if one of the tokenizers is not known, or
// `pattern` is empty.
absl::Status CheckTokenizer(const std::string& pattern, const std::string& other,
                            const std::optional<TokenizerOrigin>& origin_of_other);

}  // namespace muster::data
