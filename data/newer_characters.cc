#include "data/newer_characters.h"

#include <algorithm>
#include <bitset>
#include <iterator>
#include <string>

#include "data/regex.h"
#include "data/utf8.h"

namespace muster::data {
namespace {

enum Category { kLu, kLl, kLm, kLo, kMn, kMc, kNd, kNo, kPd, kPo, kSm, kSo, kCf };

// By Category: characters of Unicode 13 or earlier that are three bytes long and four; 0 where none is newer.
constexpr uint32_t kStandIns[][2] = {{0x1e94, 0x10400}, {0x1e95, 0x10428}, {0, 0x16b40}, {0, 0x10000},
                                     {0x1dc0, 0x101fd}, {0x1ce1, 0x11000}, {0, 0x104a0}, {0, 0x10107},
                                     {0, 0x10ead},      {0x2cf9, 0x10100}, {0, 0x1d6c1}, {0x2400, 0x10137},
                                     {0, 0x110bd}};

struct NewerRange {
  uint32_t first, last;
  Category category;
};

// Where the general categories of Oniguruma 6.9.10 (Unicode 16) and of PCRE2 10.42 (Unicode 14) differ.
constexpr NewerRange kNewer[] = {
    {0x897, 0x897, kMn},     {0xcf3, 0xcf3, kMc},     {0xece, 0xece, kMn},     {0x1b4e, 0x1b4f, kPo},
    {0x1b7f, 0x1b7f, kPo},   {0x1c89, 0x1c89, kLu},   {0x1c8a, 0x1c8a, kLl},   {0x2427, 0x2429, kSo},
    {0x2ffc, 0x2fff, kSo},   {0x31e4, 0x31e5, kSo},   {0x31ef, 0x31ef, kSo},   {0xa7cb, 0xa7cc, kLu},
    {0xa7cd, 0xa7cd, kLl},   {0xa7da, 0xa7da, kLu},   {0xa7db, 0xa7db, kLl},   {0xa7dc, 0xa7dc, kLu},
    {0x105c0, 0x105f3, kLo}, {0x10d40, 0x10d49, kNd}, {0x10d4a, 0x10d4d, kLo}, {0x10d4e, 0x10d4e, kLm},
    {0x10d4f, 0x10d4f, kLo}, {0x10d50, 0x10d65, kLu}, {0x10d69, 0x10d6d, kMn}, {0x10d6e, 0x10d6e, kPd},
    {0x10d6f, 0x10d6f, kLm}, {0x10d70, 0x10d85, kLl}, {0x10d8e, 0x10d8f, kSm}, {0x10ec2, 0x10ec4, kLo},
    {0x10efc, 0x10eff, kMn}, {0x1123f, 0x11240, kLo}, {0x11241, 0x11241, kMn}, {0x11380, 0x11389, kLo},
    {0x1138b, 0x1138b, kLo}, {0x1138e, 0x1138e, kLo}, {0x11390, 0x113b5, kLo}, {0x113b7, 0x113b7, kLo},
    {0x113b8, 0x113ba, kMc}, {0x113bb, 0x113c0, kMn}, {0x113c2, 0x113c2, kMc}, {0x113c5, 0x113c5, kMc},
    {0x113c7, 0x113ca, kMc}, {0x113cc, 0x113cd, kMc}, {0x113ce, 0x113ce, kMn}, {0x113cf, 0x113cf, kMc},
    {0x113d0, 0x113d0, kMn}, {0x113d1, 0x113d1, kLo}, {0x113d2, 0x113d2, kMn}, {0x113d3, 0x113d3, kLo},
    {0x113d4, 0x113d5, kPo}, {0x113d7, 0x113d8, kPo}, {0x113e1, 0x113e2, kMn}, {0x116d0, 0x116e3, kNd},
    {0x1171e, 0x1171e, kMc}, {0x11b00, 0x11b09, kPo}, {0x11bc0, 0x11be0, kLo}, {0x11be1, 0x11be1, kPo},
    {0x11bf0, 0x11bf9, kNd}, {0x11f00, 0x11f01, kMn}, {0x11f02, 0x11f02, kLo}, {0x11f03, 0x11f03, kMc},
    {0x11f04, 0x11f10, kLo}, {0x11f12, 0x11f33, kLo}, {0x11f34, 0x11f35, kMc}, {0x11f36, 0x11f3a, kMn},
    {0x11f3e, 0x11f3f, kMc}, {0x11f40, 0x11f40, kMn}, {0x11f41, 0x11f41, kMc}, {0x11f42, 0x11f42, kMn},
    {0x11f43, 0x11f4f, kPo}, {0x11f50, 0x11f59, kNd}, {0x11f5a, 0x11f5a, kMn}, {0x1342f, 0x1342f, kLo},
    {0x13439, 0x1343f, kCf}, {0x13440, 0x13440, kMn}, {0x13441, 0x13446, kLo}, {0x13447, 0x13455, kMn},
    {0x13460, 0x143fa, kLo}, {0x16100, 0x1611d, kLo}, {0x1611e, 0x16129, kMn}, {0x1612a, 0x1612c, kMc},
    {0x1612d, 0x1612f, kMn}, {0x16130, 0x16139, kNd}, {0x16d40, 0x16d42, kLm}, {0x16d43, 0x16d6a, kLo},
    {0x16d6b, 0x16d6c, kLm}, {0x16d6d, 0x16d6f, kPo}, {0x16d70, 0x16d79, kNd}, {0x18cff, 0x18cff, kLo},
    {0x1b132, 0x1b132, kLo}, {0x1b155, 0x1b155, kLo}, {0x1cc00, 0x1ccef, kSo}, {0x1ccf0, 0x1ccf9, kNd},
    {0x1cd00, 0x1ceb3, kSo}, {0x1d2c0, 0x1d2d3, kNo}, {0x1df25, 0x1df2a, kLl}, {0x1e030, 0x1e06d, kLm},
    {0x1e08f, 0x1e08f, kMn}, {0x1e4d0, 0x1e4ea, kLo}, {0x1e4eb, 0x1e4eb, kLm}, {0x1e4ec, 0x1e4ef, kMn},
    {0x1e4f0, 0x1e4f9, kNd}, {0x1e5d0, 0x1e5ed, kLo}, {0x1e5ee, 0x1e5ef, kMn}, {0x1e5f0, 0x1e5f0, kLo},
    {0x1e5f1, 0x1e5fa, kNd}, {0x1e5ff, 0x1e5ff, kPo}, {0x1f6dc, 0x1f6dc, kSo}, {0x1f774, 0x1f776, kSo},
    {0x1f77b, 0x1f77f, kSo}, {0x1f7d9, 0x1f7d9, kSo}, {0x1f8b2, 0x1f8bb, kSo}, {0x1f8c0, 0x1f8c1, kSo},
    {0x1fa75, 0x1fa77, kSo}, {0x1fa87, 0x1fa89, kSo}, {0x1fa8f, 0x1fa8f, kSo}, {0x1faad, 0x1faaf, kSo},
    {0x1fabb, 0x1fabf, kSo}, {0x1fac6, 0x1fac6, kSo}, {0x1face, 0x1facf, kSo}, {0x1fada, 0x1fadc, kSo},
    {0x1fadf, 0x1fadf, kSo}, {0x1fae8, 0x1fae9, kSo}, {0x1faf7, 0x1faf8, kSo}, {0x1fbcb, 0x1fbef, kSo},
    {0x2b739, 0x2b739, kLo}, {0x2ebf0, 0x2ee5d, kLo}, {0x31350, 0x323af, kLo},
};

uint32_t StandIn(const NewerRange& range) { return kStandIns[range.category][range.first > 0xffff ? 1 : 0]; }

// Blocks of 64 characters that hold a newer one.
bool InNewerBlock(uint32_t character) {
  static const auto* const kBlocks = [] {
    auto* blocks = new std::bitset<0x110000 / 64>;
    for (const NewerRange& range : kNewer) {
      for (uint32_t block = range.first / 64; block <= range.last / 64; ++block) blocks->set(block);
    }
    return blocks;
  }();
  return (*kBlocks)[character / 64];
}

}  // namespace

uint32_t StandInFor(uint32_t character) {
  if (!InNewerBlock(character)) return 0;
  const auto* const after = std::upper_bound(std::begin(kNewer), std::end(kNewer), character,
                                             [](uint32_t c, const NewerRange& range) { return c < range.first; });
  return after == std::begin(kNewer) || character > std::prev(after)->last ? 0 : StandIn(*std::prev(after));
}

bool StandInsKeepMembership(uint32_t first, uint32_t last) {
  return std::all_of(std::begin(kNewer), std::end(kNewer), [&](const NewerRange& range) {
    const bool stand_in = first <= StandIn(range) && StandIn(range) <= last;
    return stand_in ? first <= range.first && range.last <= last : range.last < first || last < range.first;
  });
}

std::string_view WithStandIns(std::string_view text, std::string& copy) {
  bool copied = false;
  // The first newer character is U+0897, E0 A2 97.
  for (size_t at = FindByteFrom(text, 0, 0xe0); at < text.size(); at = FindByteFrom(text, at, 0xe0)) {
    const size_t bytes = BytesOfLead(text[at]);
    if (const uint32_t stand_in = StandInFor(CharacterAt(text, at)); stand_in != 0) {
      if (!copied) copy = text;
      copied = true;
      std::string replaced;
      AppendUtf8(stand_in, replaced);
      copy.replace(at, bytes, replaced);
    }
    at += bytes;
  }
  return copied ? std::string_view(copy) : text;
}

}  // namespace muster::data
