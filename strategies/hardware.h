// What machines are assumed to do, for predictions of time. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "strategies/partition/planners.h"
#include "strategies/schedule/simulate.h"

namespace muster::strategies {

// What one rank gets of it, one way.
struct Link {
  double bytes_per_second = 0;
  double seconds = 0;  // latency of one hop
};

// Rates are those that training reaches, not the data sheet's; `assumptions` says where they come from.
struct Hardware {
  std::string name;
  std::string assumptions;
  uint32_t ranks_per_node = 1;  // where the nodes are not known
  double fp32_flops = 0;        // a second, of a rank
  double bf16_flops = 0;
  uint32_t at_full_speed = 0;  // ranks of a node that compute so at the same time, more share; 0: all
  double memory_bytes_per_second = 0;
  double op_seconds = 0;  // that a unit's forward takes at least: launches, small operators
  Link inside;            // between ranks of a node
  Link between;           // between nodes
  Sharing sharing = Sharing::kLinks;
};

// The built-in ones, each with its sources.
const std::vector<Hardware>& KnownHardware();
// InvalidArgument naming those that there are.
absl::StatusOr<Hardware> FindHardware(absl::string_view name);

// `world` ranks that fill nodes of `ranks_per_node`, with slots of so much memory (0: not known).
std::vector<RankPlace> FullNodes(uint32_t world, uint32_t ranks_per_node, uint64_t memory_bytes);

}  // namespace muster::strategies
