// Tokens that a text is cut at before anything else happens to it: `added_tokens` of tokenizer.json, with the rules of
// the `tokenizers` package for which of them are found and how much white space they take along.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "data/text_stage.h"

namespace muster::data {

struct AddedToken {
  std::string content;
  uint32_t id = 0;
  bool single_word = false;  // only where no character of a word is next to it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in normalized text, and normalized itself
  bool special = false;      // comes before others that are equal once normalized
};

// Passes on the text between tokens, each stretch as a piece, and calls `emit` with the id of each token once all text
// before it is passed on. At each place the longest token is taken, of equal ones the first.
StagePointer SplitAtTokens(const std::vector<AddedToken>& tokens, std::function<void(uint32_t)> emit,
                           StagePointer next);

}  // namespace muster::data
