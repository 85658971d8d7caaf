#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace muster {

// Whether a byte of UTF-8 continues a character.
inline bool ContinuesUtf8(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The character at the start of `text`, which is not empty, and the length of its UTF-8 sequence; length 0: malformed.
std::pair<size_t, char32_t> DecodeUtf8(absl::string_view text);

// Cuts `text` to at most `bytes`, between two characters.
void ShortenUtf8(size_t bytes, std::string& text);

// One line of text for users, of at most so many bytes: what is malformed or unprintable becomes a "?".
std::string CleanText(absl::string_view text, size_t bytes);

}  // namespace muster
