// CRC-32C (Castagnoli), reflected, as iSCSI (RFC 3720, section 12.1) and ext4 use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

uint32_t Crc32c(std::string_view bytes);

// The CRC of the data of `crc` followed by `bytes`; the CRC of nothing is 0. With SSE 4.2 several GB/s.
uint32_t ExtendCrc32c(uint32_t crc, std::string_view bytes);

}  // namespace muster
