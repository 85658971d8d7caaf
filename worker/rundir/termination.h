// Signals of a rank's process, the same for muster-trainer and muster-exec.
#pragma once

namespace muster::rundir {

// From now on SIGTERM and SIGINT only set a flag; a closed pipe and a file size limit become errors of the failing call
// instead of signals. Call it once, from main.
void CatchSignals();

// SIGTERM or SIGINT has come.
bool Terminated();

}  // namespace muster::rundir
