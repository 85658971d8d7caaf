#include "data/utf8.h"

#include <algorithm>
#include <cstring>

namespace muster::data {

size_t CharacterBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
  if (at >= text.size()) return 0;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead <= 0xdf) return follows(1) ? 2 : 0;
  if (lead >= 0xe0 && lead <= 0xef) {
    return follows(1, lead == 0xe0 ? 0xa0 : 0x80, lead == 0xed ? 0x9f : 0xbf) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xf0 && lead <= 0xf4) {
    return follows(1, lead == 0xf0 ? 0x90 : 0x80, lead == 0xf4 ? 0x8f : 0xbf) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

size_t IncompleteBytes(std::string_view text) {
  for (size_t bytes = 1; bytes <= std::min<size_t>(3, text.size()); ++bytes) {
    const auto lead = static_cast<uint8_t>(text[text.size() - bytes]);
    if (lead >= 0x80 && lead < 0xc0) continue;
    if (lead < 0xc2 || lead > 0xf4 || BytesOfLead(static_cast<char>(lead)) <= bytes) return 0;
    // Some continuation makes it a character, unless its second byte already rules that out.
    std::string completed(text.substr(text.size() - bytes));
    while (completed.size() < BytesOfLead(static_cast<char>(lead))) {
      completed += completed.size() == 1 && (lead == 0xe0 || lead == 0xf0) ? '\xbf' : '\x80';
    }
    return CharacterBytes(completed, 0) > 0 ? bytes : 0;
  }
  return 0;
}

uint32_t CharacterAt(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[at + i])); };
  switch (BytesOfLead(text[at])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1f) << 6 | (byte(1) & 0x3f);
    case 3:
      return (byte(0) & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
}

size_t CharacterBefore(std::string_view text, size_t at) {
  do {
    --at;
  } while ((static_cast<uint8_t>(text[at]) & 0xc0) == 0x80);
  return at;
}

void AppendUtf8(uint32_t character, std::string& text) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (character >> shift & 0x3f)); };
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else if (character < 0x800) {
    text += static_cast<char>(0xc0 | character >> 6);
    tail(0);
  } else if (character < 0x10000) {
    text += static_cast<char>(0xe0 | character >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xf0 | character >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t FindByteFrom(std::string_view text, size_t at, uint8_t least) {
  while (at < text.size()) {
    uint64_t eight = 0;
    if (at + sizeof eight <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    for (const size_t end = std::min(at + sizeof eight, text.size()); at < end; ++at) {
      if (static_cast<uint8_t>(text[at]) >= least) return at;
    }
  }
  return text.size();
}

bool IsSpace(uint32_t character) {
  return (character >= 0x09 && character <= 0x0d) || character == 0x20 || character == 0x85 || character == 0xa0 ||
         character == 0x1680 || (character >= 0x2000 && character <= 0x200a) || character == 0x2028 ||
         character == 0x2029 || character == 0x202f || character == 0x205f || character == 0x3000;
}

}  // namespace muster::data
