#pragma once

namespace muster::units {

// LibTorch computes exp, log, sqrt and the like on x86-64 CPUs by functions of MKL. Which ones suit the CPU MKL finds
// out when the first is called, without a lock: threads that call another one meanwhile may compute by a variant of low
// accuracy, once (wrong by up to 1.5e-4 of an fp32 exp). This has it found out on one thread. Called before any other
// computation; thread-safe, and later calls do nothing.
void ChooseVectorFunctions();

}  // namespace muster::units
