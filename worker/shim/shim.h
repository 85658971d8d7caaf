// The shim of one rank: the parent of its trainer, so that the worker daemon can restart. It reads its input from the
// rank's folder, and writes processes.json, the log and exit.json there.
#pragma once

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/rundir/rundir.h"

namespace muster::step {

// Runs the rank to its end. Changes this process: session, subreaper, limits, signals, standard descriptors. Errors:
// the folder is unusable (no start.json, or the log or exit.json cannot be written); a trainer's failure is no error.
// Single-threaded.
absl::Status RunRank(const rundir::RankDir& dir, const Clock& clock);

}  // namespace muster::step
