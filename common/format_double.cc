#include "common/format_double.h"

#include <charconv>
#include <cmath>
#include <system_error>

namespace muster {

std::string FormatDouble(double value) {
  char buffer[64];
  if (value == 0) return std::signbit(value) ? "-0.0" : "0";
  const double magnitude = std::fabs(value);
  // Plain digits where users expect them; to_chars alone writes 0.0003 as 3e-04.
  const bool plain = magnitude >= 1e-4 && magnitude < 1e7;
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (const size_t e = text.find('e'); e != std::string::npos) {
    size_t digits = e + 1;
    if (text[digits] == '+') {
      text.erase(digits, 1);
    } else if (text[digits] == '-') {
      ++digits;
    }
    while (digits + 1 < text.size() && text[digits] == '0') text.erase(digits, 1);
  }
  return text;
}

}  // namespace muster
