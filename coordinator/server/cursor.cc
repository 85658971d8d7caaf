#include "coordinator/server/cursor.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/sha256.h"

namespace muster::server {

std::string CursorOf(uint64_t sequence) {
  const std::string position = absl::StrFormat("c1-%016x", sequence);
  return absl::StrCat(position, "-", Sha256Hex("muster cursor " + position).substr(0, 8));
}

absl::StatusOr<uint64_t> ParseCursor(const std::string& cursor) {
  uint64_t sequence = 0;
  if (cursor.size() == 28 && absl::SimpleHexAtoi(absl::string_view(cursor).substr(3, 16), &sequence) &&
      CursorOf(sequence) == cursor) {
    return sequence;
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", cursor.substr(0, 64),
                                                 "\" is not a cursor of a coordinator; take it from an item of a "
                                                 "watch, or omit it to start at the beginning"));
}

}  // namespace muster::server
