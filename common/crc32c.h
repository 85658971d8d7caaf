// CRC-32C (Castagnoli), reflected, as iSCSI (RFC 3720, section 12.1) and ext4 use it.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster {

uint32_t Crc32c(std::string_view bytes);

}  // namespace muster
