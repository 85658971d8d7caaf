#include "common/crc32c.h"

#include <array>
#include <cstring>

#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace muster {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

uint32_t Portable(uint32_t crc, std::string_view bytes) {
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return crc;
}

#ifdef __x86_64__
__attribute__((target("sse4.2"))) uint32_t Hardware(uint32_t crc, std::string_view bytes) {
  uint64_t wide = crc;
  for (; bytes.size() >= sizeof wide; bytes.remove_prefix(sizeof wide)) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (const char c : bytes) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(c));
  return crc;
}
#endif

}  // namespace

uint32_t ExtendCrc32c(uint32_t crc, std::string_view bytes) {
#ifdef __x86_64__
  static const bool hardware = __builtin_cpu_supports("sse4.2");
  if (hardware) return ~Hardware(~crc, bytes);
#endif
  return ~Portable(~crc, bytes);
}

uint32_t Crc32c(std::string_view bytes) { return ExtendCrc32c(0, bytes); }

}  // namespace muster
