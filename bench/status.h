// Reads /proc/self/status.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace muster::bench {

// "VmHWM" (peak resident) or "VmRSS" of this process.
inline uint64_t StatusBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

}  // namespace muster::bench
