// FNV-1a (Fowler, Noll, Vo, 1991): the same everywhere.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::simulate {

inline void AddToHash(std::string_view bytes, uint64_t& hash) {
  for (const char c : bytes) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
}

}  // namespace muster::simulate
