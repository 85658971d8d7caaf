// The built-in hardware that plans are predicted for: strategies::FindHardware.
#pragma once

namespace muster {

inline constexpr const char* kHardwareNames[] = {"h100", "h200", "a100", "cpu", "cpu-bf16", "rtx4090"};

}  // namespace muster
