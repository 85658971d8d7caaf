// Records of TensorBoard event files, one event each. Format (tensorflow/core/lib/io/record_writer.h): u64 length,
// masked CRC-32C of the length, the event, masked CRC-32C of the event; little-endian. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace muster {

inline constexpr size_t kEventHeaderBytes = 12;
inline constexpr size_t kEventTrailerBytes = 4;

// TensorFlow masks stored CRCs, since a CRC over data that contains CRCs is weak: rotate by 15 bits, add a constant.
uint32_t MaskedCrc(std::string_view bytes);

// The record that holds `event`.
std::string EventRecord(std::string_view event);

// The length of the event after `header`, kEventHeaderBytes long. None: the header's checksum is wrong.
std::optional<uint64_t> EventLength(std::string_view header);
// Whether `trailer`, kEventTrailerBytes long, is the checksum of `event`.
bool IsTrailerOf(std::string_view trailer, std::string_view event);

}  // namespace muster
