#include "cli/spec/scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster::cli {
namespace {

constexpr size_t kShown = 40;

bool Digit(char c) { return c >= '0' && c <= '9'; }

size_t SkipDigits(absl::string_view text, size_t at) {
  while (at < text.size() && Digit(text[at])) ++at;
  return at;
}

bool IsInteger(absl::string_view t) {
  if (t.size() > 2 && t[0] == '0' && t[1] == 'o') {
    return t.find_first_not_of("01234567", 2) == absl::string_view::npos;
  }
  if (t.size() > 2 && t[0] == '0' && t[1] == 'x') {
    return t.find_first_not_of("0123456789abcdefABCDEF", 2) == absl::string_view::npos;
  }
  const size_t sign = !t.empty() && (t[0] == '-' || t[0] == '+') ? 1 : 0;
  return t.size() > sign && SkipDigits(t, sign) == t.size();
}

bool IsSpecialFloat(absl::string_view t) {
  if (t == ".nan" || t == ".NaN" || t == ".NAN") return true;
  if (!t.empty() && (t[0] == '-' || t[0] == '+')) t.remove_prefix(1);
  return t == ".inf" || t == ".Inf" || t == ".INF";
}

bool IsFloat(absl::string_view t) {
  if (IsSpecialFloat(t)) return true;
  size_t at = !t.empty() && (t[0] == '-' || t[0] == '+') ? 1 : 0;
  const size_t whole_end = SkipDigits(t, at);
  const bool whole = whole_end > at;
  at = whole_end;
  if (at < t.size() && t[at] == '.') {
    const size_t fraction_end = SkipDigits(t, at + 1);
    if (!whole && fraction_end == at + 1) return false;
    at = fraction_end;
  } else if (!whole) {
    return false;
  }
  if (at < t.size() && (t[at] == 'e' || t[at] == 'E')) {
    ++at;
    if (at < t.size() && (t[at] == '-' || t[at] == '+')) ++at;
    const size_t end = SkipDigits(t, at);
    if (end == at) return false;
    at = end;
  }
  return at == t.size();
}

struct Split {
  bool negative = false;
  int base = 10;
  absl::string_view digits;
};

Split SplitInteger(absl::string_view t) {
  if (t.size() > 2 && t[0] == '0' && t[1] == 'o') return {false, 8, t.substr(2)};
  if (t.size() > 2 && t[0] == '0' && t[1] == 'x') return {false, 16, t.substr(2)};
  const bool sign = !t.empty() && (t[0] == '-' || t[0] == '+');
  return {sign && t[0] == '-', 10, t.substr(sign ? 1 : 0)};
}

absl::StatusOr<uint64_t> Magnitude(const Split& split) {
  uint64_t value = 0;
  const char* end = split.digits.data() + split.digits.size();
  const auto [at, error] = std::from_chars(split.digits.data(), end, value, split.base);
  if (error != std::errc() || at != end) return absl::OutOfRangeError("does not fit 64 bits");
  return value;
}

}  // namespace

ScalarType CoreType(absl::string_view t) {
  if (t.empty() || t == "~" || t == "null" || t == "Null" || t == "NULL") return ScalarType::kNull;
  for (const char* word : {"true", "True", "TRUE", "false", "False", "FALSE"}) {
    if (t == word) return ScalarType::kBool;
  }
  if (IsInteger(t)) return ScalarType::kInteger;
  return IsFloat(t) ? ScalarType::kFloat : ScalarType::kString;
}

std::string DescribeScalar(absl::string_view text, ScalarType type) {
  const bool cut = text.size() > kShown;
  size_t end = std::min(kShown, text.size());
  while (cut && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80)
    --end;  // do not cut a UTF-8 character
  const std::string shown = absl::StrCat(absl::Utf8SafeCEscape(text.substr(0, end)), cut ? "..." : "");
  switch (type) {
    case ScalarType::kNull:
      return "nothing";
    case ScalarType::kBool:
      return shown;
    case ScalarType::kInteger:
    case ScalarType::kFloat:
      return absl::StrCat("the number ", shown);
    case ScalarType::kString:
      return absl::StrCat("the string \"", shown, "\"");
  }
  return shown;
}

absl::StatusOr<int64_t> ParseSigned(absl::string_view text) {
  const Split split = SplitInteger(text);
  const absl::StatusOr<uint64_t> magnitude = Magnitude(split);
  if (!magnitude.ok()) return magnitude.status();
  constexpr uint64_t kMost = std::numeric_limits<int64_t>::max();
  if (*magnitude > kMost + (split.negative ? 1 : 0)) return absl::OutOfRangeError("does not fit 64 bits");
  return split.negative ? static_cast<int64_t>(~*magnitude + 1) : static_cast<int64_t>(*magnitude);
}

absl::StatusOr<uint64_t> ParseUnsigned(absl::string_view text) {
  const Split split = SplitInteger(text);
  const absl::StatusOr<uint64_t> magnitude = Magnitude(split);
  if (magnitude.ok() && split.negative && *magnitude != 0) return absl::OutOfRangeError("is negative");
  return magnitude;
}

absl::StatusOr<double> ParseDouble(absl::string_view text) {
  if (IsSpecialFloat(text)) return absl::InvalidArgumentError("must be a finite number");
  if (IsInteger(text)) {
    if (const Split split = SplitInteger(text); split.base != 10) {
      const absl::StatusOr<uint64_t> magnitude = Magnitude(split);
      if (!magnitude.ok()) return magnitude.status();
      return static_cast<double>(*magnitude);
    }
  }
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) return absl::OutOfRangeError("does not fit a double");
  if (error != std::errc() || at != text.data() + text.size()) return absl::InvalidArgumentError("is not a number");
  return value;
}

}  // namespace muster::cli
