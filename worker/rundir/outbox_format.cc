#include "worker/rundir/outbox_format.h"

#include "common/crc32c.h"
#include "worker/rundir/outbox.h"

namespace muster::rundir {
namespace {

uint32_t LoadLittle(const char* from) {
  const auto* p = reinterpret_cast<const unsigned char*>(from);
  return uint32_t{p[0]} | uint32_t{p[1]} << 8 | uint32_t{p[2]} << 16 | uint32_t{p[3]} << 24;
}

void AppendLittle(uint32_t value, std::string& to) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>((value >> shift) & 0xFF));
}

}  // namespace

std::string EncodeRecord(const Record& record) {
  const std::string body = record.SerializeAsString();
  std::string encoded;
  encoded.reserve(kRecordHeaderBytes + body.size());
  AppendLittle(static_cast<uint32_t>(body.size()), encoded);
  AppendLittle(Crc32c(body), encoded);
  return encoded + body;
}

Found DecodeRecord(std::string_view bytes, Record& record, size_t& size) {
  if (bytes.empty()) return Found::kEnd;
  if (bytes.size() < kRecordHeaderBytes) return Found::kTorn;
  const uint32_t length = LoadLittle(bytes.data());
  if (length == 0) return bytes.find_first_not_of('\0') == std::string_view::npos ? Found::kTorn : Found::kDamaged;
  if (length > kOutboxSegmentBytes) return Found::kDamaged;  // Append refuses such a record, so no writer made it
  if (bytes.size() - kRecordHeaderBytes < length) return Found::kTorn;
  const std::string_view body = bytes.substr(kRecordHeaderBytes, length);
  size = kRecordHeaderBytes + length;
  if (Crc32c(body) == LoadLittle(bytes.data() + 4) && record.ParseFromArray(body.data(), static_cast<int>(length))) {
    return Found::kRecord;
  }
  return size == bytes.size() ? Found::kTorn : Found::kDamaged;
}

}  // namespace muster::rundir
