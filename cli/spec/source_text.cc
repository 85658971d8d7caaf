#include "cli/spec/source_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/utf8.h"

namespace muster::cli {
namespace {

// YAML 1.2.2, production 1 (c-printable), without carriage return, which is checked separately.
bool Printable(char32_t c) {
  return c == '\t' || c == '\n' || (c >= 0x20 && c < 0x7F) || c == 0x85 || (c >= 0xA0 && c != 0xFFFE && c != 0xFFFF);
}

}  // namespace

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    const size_t length = DecodeUtf8(text).first;
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

SourceText::SourceText(absl::string_view text, const std::string& name)
    : text_(text), name_(std::make_shared<const std::string>(name)) {
  if (absl::StartsWith(text_, "\xEF\xBB\xBF")) text_.remove_prefix(3);
  line_starts_.push_back(0);
  characters_.reserve(text_.size() + 1);
  uint32_t characters = 0;
  for (size_t i = 0; i < text_.size(); ++i) {
    characters_.push_back(characters);
    if (i + 1 == text_.size() || !ContinuesUtf8(text_[i + 1])) ++characters;
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
  characters_.push_back(characters);
}

Location SourceText::At(size_t byte) const {
  byte = std::min(byte, text_.size());
  const auto line = std::upper_bound(line_starts_.begin(), line_starts_.end(), byte) - 1;
  return Location{name_, static_cast<int>(line - line_starts_.begin()) + 1,
                  static_cast<int>(characters_[byte] - characters_[*line]) + 1};
}

std::optional<Problem> SourceText::Check(size_t max_bytes) const {
  if (text_.size() > max_bytes) {
    return Problem{At(0), "", absl::StrCat("has ", text_.size(), " bytes; a spec has at most ", max_bytes), ""};
  }
  if (absl::StartsWith(text_, "\xFF\xFE") || absl::StartsWith(text_, "\xFE\xFF")) {
    return Problem{At(0), "", "is UTF-16: save it as UTF-8", ""};
  }
  if (const size_t zero = text_.find('\0'); zero != absl::string_view::npos) {
    return Problem{At(zero), "", "is not text: a byte is 0; a job file is YAML", ""};
  }
  return CheckCharacters();
}

std::optional<Problem> SourceText::CheckCharacters() const {
  for (size_t i = 0; i < text_.size();) {
    const auto [length, character] = DecodeUtf8(text_.substr(i));
    if (length == 0) {
      return Problem{At(i), "", absl::StrFormat("is not UTF-8: byte 0x%02X", static_cast<unsigned char>(text_[i])), ""};
    }
    if (character == '\r') {
      if (i + 1 == text_.size() || text_[i + 1] != '\n') {
        return Problem{At(i), "", "a carriage return alone: end lines with \\n or \\r\\n", ""};
      }
    } else if (!Printable(character)) {
      return Problem{At(i), "", absl::StrFormat("control character U+%04X", static_cast<uint32_t>(character)), ""};
    }
    i += length;
  }
  return std::nullopt;
}

bool SourceText::QuoteNeverCloses(size_t byte) const {
  absl::string_view rest = From(byte);
  while (!rest.empty() && (rest[0] == '!' || rest[0] == '&')) {
    rest.remove_prefix(std::min(rest.find_first_of(" \t\r\n"), rest.size()));
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  }
  if (rest.empty() || (rest[0] != '"' && rest[0] != '\'')) return false;
  const char quote = rest[0];
  for (size_t i = 1; i < rest.size(); ++i) {
    if (quote == '"' && rest[i] == '\\') {
      ++i;
    } else if (rest[i] == quote) {
      if (quote == '"' || i + 1 == rest.size() || rest[i + 1] != '\'') return false;
      ++i;
    }
  }
  return true;
}

bool SourceText::BracketNeverCloses(size_t byte) const {
  std::string open;  // the brackets that would close what is open
  for (size_t i = byte; i < text_.size(); ++i) {
    const char c = text_[i];
    // Quotes and comments begin only after one of these: it's and a#b are plain text.
    const bool begins = i > 0 && absl::string_view(" \t\r\n[{,:").find(text_[i - 1]) != absl::string_view::npos;
    if (c == '[' || c == '{') {
      open += c == '[' ? ']' : '}';
    } else if (c == ']' || c == '}') {
      if (open.back() != c) return true;
      open.pop_back();
      if (open.empty()) return false;
    } else if (c == '#' && begins) {
      i = std::min(text_.find('\n', i), text_.size());
    } else if ((c == '"' || c == '\'') && begins) {
      while (++i < text_.size() && text_[i] != c) {
        if (c == '"' && text_[i] == '\\') ++i;
      }
    }
  }
  return true;
}

std::optional<size_t> SourceText::FirstIndentingTab(size_t byte) const {
  for (const size_t start : line_starts_) {
    if (start > byte) break;
    const size_t text = text_.find_first_not_of(" \t", start);
    if (text == absl::string_view::npos || text_[text] == '\n' || text_[text] == '\r' || text_[text] == '#') continue;
    const size_t tab = text_.substr(0, text).find('\t', start);
    if (tab != absl::string_view::npos) return tab;
  }
  return std::nullopt;
}

}  // namespace muster::cli
