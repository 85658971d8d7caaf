#include "common/event_record.h"

#include "common/crc32c.h"

namespace muster {
namespace {

template <typename T>
std::string ToLittleEndian(T value) {
  std::string bytes(sizeof(T), '\0');
  for (size_t i = 0; i < sizeof(T); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
  return bytes;
}

template <typename T>
T FromLittleEndian(std::string_view bytes) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>(value << 8 | static_cast<unsigned char>(bytes[i]));
  return value;
}

}  // namespace

uint32_t MaskedCrc(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

std::string EventRecord(std::string_view event) {
  const std::string length = ToLittleEndian<uint64_t>(event.size());
  std::string record = length + ToLittleEndian(MaskedCrc(length));
  record.append(event);
  return record + ToLittleEndian(MaskedCrc(event));
}

std::optional<uint64_t> EventLength(std::string_view header) {
  if (FromLittleEndian<uint32_t>(header.substr(8, 4)) != MaskedCrc(header.substr(0, 8))) return std::nullopt;
  return FromLittleEndian<uint64_t>(header.substr(0, 8));
}

bool IsTrailerOf(std::string_view trailer, std::string_view event) {
  return FromLittleEndian<uint32_t>(trailer.substr(0, 4)) == MaskedCrc(event);
}

}  // namespace muster
