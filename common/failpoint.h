// Named places at which a test lets the disk fail or the process die: before each write, fsync and rename whose loss
// must be survived. Compiled in always; unarmed it costs one relaxed load.
//
//   if (const int error = failpoint::Hit("checkpoint.shard.sync")) return FileError(error, "syncing ...");
//
// Armed by the environment variable MUSTER_FAILPOINTS, read at the first Hit, or by Arm:
//
//   MUSTER_FAILPOINTS="checkpoint.manifest.rename=kill@2;store.commit=EIO"
//
// Of each point an action, and at which passing it is done (from 1; default 1; "@*": at each):
//   kill       SIGKILL to this process, before what the point stands in front of
//   ENOSPC, EIO, EDQUOT, EFBIG, EACCES   Hit returns that errno, and the caller fails as if the system call had
//   sleep:MS   the thread sleeps so many milliseconds, then goes on: a slow disk
//
// A name that ends in '*' stands for all that begin so. A text that cannot be read ends the process with a message: a
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
}  // namespace internal

// 0, or the errno with which the operation behind this point is to fail. `name`: "<part>.<file>.<operation>".
inline int Hit(std::string_view name) {
  return internal::state.load(std::memory_order_relaxed) == internal::kOff ? 0 : internal::Pass(name);
}

// In place of what was armed before, and counts from zero; empty: off. InvalidArgument: what is wrong with the text.
absl::Status Arm(std::string_view text);

// How often each point was passed since something was armed, be it a name that nothing has: so a test finds out which
// points there are.
std::map<std::string, uint64_t> Passed();

}  // namespace muster::failpoint
