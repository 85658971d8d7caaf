// The process's allocator of CPU tensors: 64-byte aligned, with counters and a cache of freed blocks. A training step
// repeats the same allocations; the cache avoids system calls and page faults (a tenth of a step of a 6 x 384 model).
// The counters give the measured memory that a plan's prediction is compared with.
//
// Thread-safe. Process-wide, like LibTorch's allocators: several engines in one process share it and its counters.
#pragma once

#include <cstdint>

namespace muster::engine {

// Installs the allocator for all new CPU tensors. Later calls do nothing.
void InstallCpuAllocator();

struct CpuMemory {
  uint64_t bytes = 0;               // of live tensors, each rounded up to 64
  uint64_t peak_bytes = 0;          // the largest `bytes` so far
  uint64_t system_bytes = 0;        // held from the system: live and cached
  uint64_t system_allocations = 0;  // blocks requested from the system; constant in a steady state
};

CpuMemory CpuMemoryUse();

// Counts the peak from here on, so that a test can measure one engine after another.
void ResetCpuMemoryPeak();

}  // namespace muster::engine
