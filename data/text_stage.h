// The steps between a text and the pieces in which byte pairs are merged. Each step passes on what it knows for certain
// and keeps the rest until more text decides it, so a text of any length streams and its parts may end anywhere.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::data {

class TextStage {
 public:
  virtual ~TextStage() = default;
  // The next part of the current piece, valid UTF-8. `end`: the piece ends with it; pieces that are empty at their end
  // are none. After an error the stage must not be used again.
  [[nodiscard]] virtual absl::Status Feed(std::string_view text, bool end) = 0;
};

// Stages own the next one.
using StagePointer = std::unique_ptr<TextStage>;

// Calls `encode` with each whole piece.
StagePointer CollectPieces(std::function<void(std::string_view)> encode);

// Puts a space before each piece that does not begin with one.
StagePointer PrefixSpace(StagePointer next);

// What becomes of the matches of a pattern; as in the `tokenizers` package.
enum class SplitBehavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitRule {
  std::string pattern;  // for Oniguruma; see regex.h
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;  // exchanges matches and what is between them
};

// Cuts each piece into pieces. InvalidArgument: as Regex::Make.
absl::StatusOr<StagePointer> SplitBy(const SplitRule& rule, StagePointer next);

// Normalizes each piece to form C.
StagePointer NormalizeNfc(StagePointer next);

}  // namespace muster::data
