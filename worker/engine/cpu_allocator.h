// The process's allocator of CPU tensors: 64-byte aligned, counting, and keeping what is freed. A training step
// allocates the same sizes again and again; kept blocks spare it the system calls and page faults (a tenth of a step
// of a 6 x 384 model), and the counter is the measured memory that a plan's prediction is compared with.
//
// Thread-safe. Process-wide, as LibTorch's allocators are: several engines in one process share it and its counts.
#pragma once

#include <cstdint>

namespace muster::engine {

// From the first call on, every new CPU tensor comes from here. Later calls do nothing.
void InstallCpuAllocator();

struct CpuMemory {
  uint64_t bytes = 0;               // of live tensors, each rounded up to 64
  uint64_t peak_bytes = 0;          // the largest `bytes` so far
  uint64_t system_bytes = 0;        // held from the system: live and kept
  uint64_t system_allocations = 0;  // blocks that were asked of it; stands still in a steady state
};

CpuMemory CpuMemoryUse();

}  // namespace muster::engine
