// UTF-8, one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::data {

// Length of the well-formed character (Unicode 15, table 3-7) at `at`; 0: there is none.
size_t CharacterBytes(std::string_view text, size_t at);

// Whether `text` ends inside of a character that more bytes could complete; returns how many bytes of it there are.
size_t IncompleteBytes(std::string_view text);

// The character at `at` of valid UTF-8, and the begin of the character that ends before `at`, which is not 0.
uint32_t CharacterAt(std::string_view text, size_t at);
size_t CharacterBefore(std::string_view text, size_t at);

// Length of the character that begins with `lead`, in valid UTF-8.
inline size_t BytesOfLead(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
}

void AppendUtf8(uint32_t character, std::string& text);

// First position from `at` on with a byte of `least` (at least 0x80) or more; the size if there is none.
size_t FindByteFrom(std::string_view text, size_t at, uint8_t least);

// Unicode's White_Space, which is \s of Oniguruma and of Rust's regular expressions.
bool IsSpace(uint32_t character);

}  // namespace muster::data
