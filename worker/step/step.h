// The shim of one rank: parent of its trainer, so that the worker daemon may die and be replaced. Everything that it
// needs is in the rank's folder; what it leaves there is processes.json, the log and exit.json.
#pragma once

#include "absl/status/status.h"
#include "common/clock.h"
#include "worker/rundir/rundir.h"

namespace muster::step {

// Runs the rank to its end. Changes this process: session, subreaper, limits, signals, standard descriptors. Errors:
// the folder is of no use (no start.json, no log, no exit.json could be written); a trainer that fails is no error.
// Single-threaded.
absl::Status RunRank(const rundir::RankDir& dir, const Clock& clock);

}  // namespace muster::step
