#include "common/utf8.h"

#include "absl/strings/str_cat.h"
#include "common/unprintable.h"

namespace muster {

std::pair<size_t, char32_t> DecodeUtf8(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {1, first};
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return {0, 0};
  char32_t value = first & (0xFF >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if (!ContinuesUtf8(text[i])) return {0, 0};
    value = value << 6 | (byte(i) & 0x3F);
  }
  const char32_t least = length == 4 ? 0x10000 : length == 3 ? 0x800 : 0x80;
  if (value < least || value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return {0, 0};
  return {length, value};
}

void ShortenUtf8(size_t bytes, std::string& text) {
  if (text.size() <= bytes) return;
  while (bytes > 0 && ContinuesUtf8(text[bytes])) --bytes;
  text.resize(bytes);
}

std::string CleanText(absl::string_view text, size_t bytes) {
  std::string clean;
  while (!text.empty() && clean.size() < bytes) {
    const auto [length, character] = DecodeUtf8(text);
    const bool good = length > 0 && !IsUnprintable(character);
    absl::StrAppend(&clean, good ? text.substr(0, length) : "?");
    text.remove_prefix(length > 0 ? length : 1);
  }
  ShortenUtf8(bytes, clean);
  return clean;
}

}  // namespace muster
