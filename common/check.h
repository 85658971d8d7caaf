// Broken invariants of our own code. Input, peers and disks get an absl::Status instead.
//
//   MUSTER_CHECK(Allowed(from, to), "job ", id, " cannot go from ", from, " to ", to);
//
// prints "coordinator/core/machines.cc:17: CHECK failed: Allowed(from, to): job a-1 cannot go ..." to stderr and
// aborts.
#pragma once

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// The message, as the arguments of absl::StrCat, is made only when the condition is false. It names the object: its id,
// rank, unit or path.
#define MUSTER_CHECK(condition, ...)      \
  (static_cast<bool>(condition) ? (void)0 \
                                : ::muster::CheckFailed(__FILE__, __LINE__, #condition, ::absl::StrCat(__VA_ARGS__)))

namespace muster {

[[noreturn]] void CheckFailed(const char* file, int line, const char* condition, absl::string_view message);

}  // namespace muster
