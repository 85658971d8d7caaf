#include "data/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "common/check.h"
#include "data/utf8.h"

namespace muster::data {
namespace {

// Below U+0300, whose first byte is CC, nothing reorders or combines with what precedes it.
constexpr uint8_t kFirstActiveLead = 0xcc;

// What utf8proc 2.8 (Unicode 15) reorders or combines and the package (Unicode 9) does not, and U+11A7, which utf8proc
// takes for a final consonant of Hangul.
constexpr std::pair<uint32_t, uint32_t> kInert[] = {
    {0x7fd, 0x7fd},     {0x898, 0x89f},     {0x8ca, 0x8d3},     {0x9fe, 0x9fe},     {0xc3c, 0xc3c},
    {0xd3b, 0xd3c},     {0xeba, 0xeba},     {0x11a7, 0x11a7},   {0x1715, 0x1715},   {0x1abf, 0x1ace},
    {0x1df6, 0x1dfa},   {0xa82c, 0xa82c},   {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10efd, 0x10eff},
    {0x10f46, 0x10f50}, {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
    {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0},
    {0x11a34, 0x11a34}, {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
    {0x11d97, 0x11d97}, {0x11f41, 0x11f42}, {0x16ff0, 0x16ff1}, {0x1e08f, 0x1e08f}, {0x1e130, 0x1e136},
    {0x1e2ae, 0x1e2ae}, {0x1e2ec, 0x1e2ef}, {0x1e4ec, 0x1e4ef},
};

enum class Kind {
  kStarter,  // may begin a run that normalizes together; unchanged by itself
  kActive,   // belongs to the run of what precedes it, or changes by itself
  kInert,    // neither
};

Kind KindOf(uint32_t c) {
  if (c < 0x300) return Kind::kStarter;
  const utf8proc_property_t* const property = utf8proc_get_property(static_cast<utf8proc_int32_t>(c));
  const bool mark = property->combining_class != 0 || property->category == UTF8PROC_CATEGORY_MN ||
                    property->category == UTF8PROC_CATEGORY_MC;
  const bool decomposes = property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0;
  const bool jamo = c >= 0x1160 && c <= 0x11ff;  // vowels and final consonants
  if (!mark && !decomposes && !jamo) return Kind::kStarter;
  const auto* const after = std::upper_bound(std::begin(kInert), std::end(kInert), c,
                                             [](uint32_t value, const auto& range) { return value < range.first; });
  return after != std::begin(kInert) && c <= std::prev(after)->second ? Kind::kInert : Kind::kActive;
}

void AppendNormalized(std::string_view run, std::string& out) {
  std::vector<utf8proc_int32_t> characters;
  for (size_t at = 0; at < run.size(); at += BytesOfLead(run[at])) {
    utf8proc_int32_t parts[8];  // a canonical decomposition has at most four
    int boundary = 0;
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(CharacterAt(run, at)), parts,
                                                           std::size(parts), UTF8PROC_DECOMPOSE, &boundary);
    MUSTER_CHECK(count > 0 && count <= static_cast<utf8proc_ssize_t>(std::size(parts)), "decomposing a character");
    characters.insert(characters.end(), parts, parts + count);
  }
  const auto rank = [](utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; };
  // utf8proc's own reordering is quadratic.
  for (auto begin = characters.begin(); begin != characters.end();) {
    begin = std::find_if(begin, characters.end(), [&](auto c) { return rank(c) != 0; });
    const auto end = std::find_if(begin, characters.end(), [&](auto c) { return rank(c) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return rank(a) < rank(b); });
    begin = end;
  }
  const utf8proc_ssize_t size =
      utf8proc_normalize_utf32(characters.data(), static_cast<utf8proc_ssize_t>(characters.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  MUSTER_CHECK(size >= 0, "composing characters");
  for (utf8proc_ssize_t i = 0; i < size; ++i) AppendUtf8(static_cast<uint32_t>(characters[i]), out);
}

}  // namespace

std::string_view Nfc(std::string_view text, std::string& copy) {
  size_t at = FindByteFrom(text, 0, kFirstActiveLead);
  if (at == text.size()) return text;
  copy.clear();
  size_t copied = 0;  // of text
  while (at < text.size()) {
    if (KindOf(CharacterAt(text, at)) != Kind::kActive) {
      at = FindByteFrom(text, at + BytesOfLead(text[at]), kFirstActiveLead);
      continue;
    }
    size_t begin = at;
    if (at > copied) {
      const size_t before = CharacterBefore(text, at);
      if (KindOf(CharacterAt(text, before)) == Kind::kStarter) begin = before;
    }
    while (at < text.size() && KindOf(CharacterAt(text, at)) == Kind::kActive) at += BytesOfLead(text[at]);
    copy += text.substr(copied, begin - copied);
    AppendNormalized(text.substr(begin, at - begin), copy);
    copied = at;
    at = FindByteFrom(text, at, kFirstActiveLead);
  }
  copy += text.substr(copied);
  return copy;
}

size_t SettledForNfc(std::string_view text) {
  for (size_t at = text.size(); at > 0;) {
    at = CharacterBefore(text, at);
    if (KindOf(CharacterAt(text, at)) != Kind::kActive) return at;
  }
  return 0;
}

}  // namespace muster::data
