#include "data/split.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cstdint>

#include "common/check.h"

namespace muster::data {
namespace {

// White_Space of Unicode, written out: PCRE2's own \s also has U+180E.
#define MUSTER_SPACE R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})"
constexpr char kPattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^)" MUSTER_SPACE
                            R"(\p{L}\p{N}]+|[)" MUSTER_SPACE R"(]+(?![^)" MUSTER_SPACE R"(])|[)" MUSTER_SPACE "]+";
#undef MUSTER_SPACE

// A piece is final once this many bytes after it are known: the pattern looks ahead at most two characters, the last of
// which may be incomplete.
constexpr size_t kLookahead = 12;

// Length of the well-formed UTF-8 character (Unicode 15, table 3-7) at `at`; 0: none.
size_t CharacterBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return at + i < text.size() ? static_cast<uint8_t>(text[at + i]) : 0; };
  const auto follows = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xbf) {
    return byte(i) >= low && byte(i) <= high;
  };
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

}  // namespace

struct Splitter::State {
  pcre2_code* code = nullptr;
  pcre2_match_data* match = nullptr;
  ~State() {
    pcre2_match_data_free(match);
    pcre2_code_free(code);
  }
};

Splitter::Splitter() : state_(std::make_unique<State>()) {
  int error = 0;
  PCRE2_SIZE where = 0;
  state_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(kPattern), PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &where, nullptr);
  MUSTER_CHECK(state_->code != nullptr, "the pattern that splits text into words: PCRE2 error ", error, " at offset ",
               where);
  pcre2_jit_compile(state_->code, PCRE2_JIT_COMPLETE);  // slower without
  state_->match = pcre2_match_data_create(1, nullptr);
}

Splitter::~Splitter() = default;

size_t Splitter::Split(std::string_view text, bool last, const std::function<void(std::string_view)>& piece) {
  const size_t settled = last ? text.size() : text.size() - std::min(text.size(), kLookahead);
  size_t at = 0;
  while (at < text.size()) {
    // A run of characters, or a run of other bytes.
    size_t end = at;
    size_t length = CharacterBytes(text, at);
    const bool valid = length > 0;
    while (end < text.size() && (length > 0) == valid) {
      end += valid ? length : 1;
      length = end < text.size() ? CharacterBytes(text, end) : 0;
    }
    if (!valid) {
      if (end > settled) return at;
      piece(text.substr(at, end - at));
      at = end;
      continue;
    }
    const std::string_view run = text.substr(0, end);
    while (at < end) {
      const int found = pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(run.data()), run.size(), at,
                                    PCRE2_NO_UTF_CHECK | PCRE2_ANCHORED, state_->match, nullptr);
      // Every character begins a match; if PCRE2 hits an internal limit (no such case is known), no text may be lost.
      size_t match_end = found >= 0 ? pcre2_get_ovector_pointer(state_->match)[1] : at;
      if (match_end == at) match_end = at + CharacterBytes(text, at);
      if (match_end > settled) return at;
      piece(text.substr(at, match_end - at));
      at = match_end;
    }
  }
  return at;
}

}  // namespace muster::data
