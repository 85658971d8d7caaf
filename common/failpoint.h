// Named points at which a test makes the disk fail or the process die: one before each write, fsync and rename that a
// crash must not corrupt. Always compiled in; unarmed it costs one relaxed load.
//
//   if (const int error = failpoint::Hit("checkpoint.shard.sync")) return FileError(error, "syncing ...");
//
// Armed by the environment variable MUSTER_FAILPOINTS, read at the first Hit, or by Arm:
//
//   MUSTER_FAILPOINTS="checkpoint.manifest.rename=kill@2;store.commit=EIO"
//
// For each point an action, and the hit that triggers it (from 1; default 1; "@*": every hit):
//   kill       SIGKILL to this process, before the operation that follows the point
//   ENOSPC, EIO, EDQUOT, EFBIG, EACCES   Hit returns that errno, and the caller fails as if the system call had
//   sleep:MS   the thread sleeps so many milliseconds, then continues: a slow disk
//
// A name that ends in '*' matches every name with that prefix. Invalid text ends the process with a message, since a
// test that armed nothing would pass for no reason.
//
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace muster::failpoint {

namespace internal {
enum State { kUnread, kOff, kArmed };
inline std::atomic<int> state = kUnread;
int Pass(std::string_view name);
int Pass(std::string_view prefix, std::string_view step);
}  // namespace internal

// 0, or the errno with which the operation after this point must fail. `name`: "<part>.<file>.<operation>".
inline int Hit(std::string_view name) {
  return internal::state.load(std::memory_order_relaxed) == internal::kOff ? 0 : internal::Pass(name);
}
// The same for the point named `prefix` followed by `step`.
inline int Hit(std::string_view prefix, std::string_view step) {
  return internal::state.load(std::memory_order_relaxed) == internal::kOff ? 0 : internal::Pass(prefix, step);
}

// Replaces the armed points and resets the counts; empty text disarms. InvalidArgument: what is wrong with the text.
absl::Status Arm(std::string_view text);

// How often each point was hit since points were armed, even under a name that matches none: a test lists the points
// this way.
std::map<std::string, uint64_t> Passed();

}  // namespace muster::failpoint
