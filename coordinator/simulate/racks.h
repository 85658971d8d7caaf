// Where the simulated nodes are: every second one in the same rack.
#pragma once

#include <string>

namespace muster::simulate {

inline constexpr size_t kRacks = 2;

// "r0" or "r1", of node-07: its label `rack`.
inline std::string RackOf(const std::string& node) { return (node.back() - '0') % 2 == 0 ? "r0" : "r1"; }

}  // namespace muster::simulate
