// The bytes of a YAML file: whether they are text at all, and the line and column of a byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "cli/spec/problem.h"

namespace muster::cli {

// RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF.
bool IsUtf8(absl::string_view text);

class SourceText {
 public:
  // `text` outlives this object. Skips a UTF-8 byte order mark.
  SourceText(absl::string_view text, const std::string& name);

  absl::string_view text() const { return text_; }
  absl::string_view From(size_t byte) const { return text_.substr(std::min(byte, text_.size())); }

  // Line and column (in characters) of a byte; the end of the text for bytes past it.
  Location At(size_t byte) const;

  // The first reason to refuse the text before parsing: too big, binary, not UTF-8, control characters.
  std::optional<Problem> Check(size_t max_bytes) const;

  // Whether a scalar at `byte` (perhaps after tags) is a quoted one that never ends, which yaml-cpp accepts.
  bool QuoteNeverCloses(size_t byte) const;

  // Whether the [ or { at `byte` has no bracket that closes it: the text ends before, or another kind is closed first.
  bool BracketNeverCloses(size_t byte) const;

  // The first tab in the indentation of a line that has text, in lines up to that of `byte`.
  std::optional<size_t> FirstIndentingTab(size_t byte) const;

 private:
  std::optional<Problem> CheckCharacters() const;

  absl::string_view text_;
  std::shared_ptr<const std::string> name_;
  std::vector<size_t> line_starts_;
  std::vector<uint32_t> characters_;  // before each byte
};

}  // namespace muster::cli
