// Ranks as threads (threads.h), as unkind as group.h allows. For tests: a schedule that waits too late, too early or
// not at all works by luck with a group that completes a collective when its last rank issues it, and fails with this
// one.
//
// - At its issue, what a collective will overwrite is filled with a signaling NaN (integers: a pattern). So what is
//   used before its wait is NaN. After a reduction, the shares of other roots stay so.
// - Results are written only once every rank has called Wait, not before. done is false until then.
// - At that time, what was poisoned must still be poison and what is only read must still be what it was. If not, the
//   tensor was reused too early: the collective and the group fail with an error that names rank and tensor, and no
//   result is written. Arithmetic makes a signaling NaN quiet, so `x += 1` on poison is found, too.
//
// A rank that never waits makes the others fail at the deadline; the error names it. A Work that is dropped before its
// wait fails the group.
//
// A send and its receive are apart: each is over at its own wait, once both have been issued. A rank's waits for
// messages may so depend on each other in any order, within a group and between groups. The receiver gets what the
// sender's tensor held at the issue; a sender that reuses the tensor fails at its own wait.
#pragma once

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// Returns one group per rank, each for one thread. Results are those of MakeThreads, bit for bit.
std::vector<std::unique_ptr<Group>> MakeAdversarial(int size, absl::Duration timeout = absl::Seconds(60));

}  // namespace muster::collectives
