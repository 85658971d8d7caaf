#pragma once

namespace muster {

// Characters that end a line, reorder it, or steer a terminal: controls (C0, C1), line separators, marks of direction.
constexpr bool IsUnprintable(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2066 && c <= 0x2069);
}

}  // namespace muster
