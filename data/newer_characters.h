// Characters of Unicode 15 to 16, which the `tokenizers` package knows and this system's PCRE2 (Unicode 14) does not.
#pragma once

#include <cstdint>

namespace muster::data {

// An older character of the same general category and length in UTF-8; 0: `character` is not newer.
uint32_t StandInFor(uint32_t character);

// Whether a range of a regular expression holds a newer character if and only if it holds its stand-in.
bool StandInsKeepMembership(uint32_t first, uint32_t last);

}  // namespace muster::data
