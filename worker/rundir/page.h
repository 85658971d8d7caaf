// A small file mapped into memory and shared between processes. For lease.cc and progress.cc.
#pragma once

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"

namespace muster::rundir {

inline constexpr size_t kPageBytes = 4096;

// `writable`: creates the file if missing, and keeps existing content. NotFound: no such file. ResourceExhausted: disk
// full. Unmap with munmap(page, kPageBytes).
absl::StatusOr<void*> MapPage(const std::string& path, bool writable);

}  // namespace muster::rundir
