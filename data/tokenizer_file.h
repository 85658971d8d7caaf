// What a tokenizer's files say: tokenizer.json, or vocab.json and merges.txt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "data/added_tokens.h"
#include "data/byte_pairs.h"
#include "data/text_stage.h"

namespace muster::data {

struct TokenizerFile {
  BytePairTable pairs;
  bool every_byte = false;  // the vocabulary must have a token for each
  std::vector<AddedToken> added;
  bool nfc = false;
  std::vector<SplitRule> splits;
  // Index into `splits` before which each piece gets a space at its begin (their number: after all); none: nowhere.
  std::optional<size_t> prefix_space;
  std::vector<uint32_t> before_text, after_text;
  std::optional<std::string> end_of_text;  // eos_token of the tokenizer_config.json in the same folder
  std::string path;                        // for messages
  std::string sha256;                      // of the files, in the order in which they were read
};

// Errors as Tokenizer::Load, except for regular expressions and for what the vocabulary lacks.
absl::StatusOr<TokenizerFile> ReadTokenizer(const std::string& path);

}  // namespace muster::data
