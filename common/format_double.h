// Numbers as users write them.
#pragma once

#include <string>

namespace muster {

// The shortest text that reads as the same double: "0.0003", "1e-8".
std::string FormatDouble(double value);

}  // namespace muster
