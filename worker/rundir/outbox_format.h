// Encodes and decodes a record of an outbox segment. For outbox_writer.cc and outbox_reader.cc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/records.pb.h"

namespace muster::rundir {

inline constexpr char kOutboxPrefix[] = "outbox";
inline constexpr size_t kRecordHeaderBytes = 8;

std::string EncodeRecord(const Record& record);

enum class Found {
  kRecord,   // complete
  kEnd,      // the bytes end here
  kTorn,     // incomplete: a write in progress, or one that was cut off
  kDamaged,  // complete but invalid
};

// Decodes the first record of `bytes` (the rest of a segment). `size`: its bytes, if complete.
// An invalid record that reaches the end is torn, not damaged: after a power loss its pages may be zeros.
Found DecodeRecord(std::string_view bytes, Record& record, size_t& size);

}  // namespace muster::rundir
