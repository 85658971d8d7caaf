// One record of an outbox segment, encoded and found again. For outbox_writer.cc and outbox_reader.cc.
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
  kRecord,   // whole
  kEnd,      // the bytes end here
  kTorn,     // its bytes are not all there: a write that is under way or was cut off
  kDamaged,  // its bytes are there, and wrong
};

// Looks at `bytes` (a segment from some record's start to its end). `size`: bytes of the record, when whole.
// A wrong record that reaches the very end is torn, not damaged: after a power loss its pages may be zeros.
Found DecodeRecord(std::string_view bytes, Record& record, size_t& size);

}  // namespace muster::rundir
