// Assumed hardware, for predictions of time. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "strategies/partition/planners.h"
#include "strategies/schedule/simulate.h"

namespace muster::strategies {

// One rank's share of a link, in one direction.
struct Link {
  double bytes_per_second = 0;
  double seconds = 0;  // latency of one hop
  // Of each further hop of a ring. NCCL gathers and scatters by rings of all ranks, one after another, where it sums by
  // trees.
  double ring_seconds = 0;
};

// What a core was measured to do beside GEMMs, which says little about it: cores with AMX compute several times as fast
// as others, and move and compress bytes no faster. 0: not measured.
struct Compressing {  // seconds for each element of a sum
  double top_k = 0, power_sgd = 0, int8 = 0;
};
struct CoreRates {
  double socket_bytes_per_second = 0;  // that it receives over sockets while it sends as many; else as Hardware.inside
  Compressing compressing = {};        // else as WorkOf (strategies/compression.h)
};

// Rates are those that training reaches, not those of the data sheet; `assumptions` states their source.
struct Hardware {
  std::string name;
  Device device = DEVICE_CPU;  // or DEVICE_CUDA
  std::string assumptions;
  uint32_t ranks_per_node = 1;  // if the nodes are unknown
  double fp32_flops = 0;        // FLOP/s of a rank
  double bf16_flops = 0;
  double tf32_flops = 0;       // of fp32 GEMMs by TF32; 0: as fp32_flops
  uint32_t at_full_speed = 0;  // ranks of a node that compute at full speed at the same time, more share; 0: all
  double memory_bytes_per_second = 0;
  double host_bytes_per_second = 0;         // between the device and the host's memory, in one direction
  double host_memory_bytes_per_second = 0;  // the rank's share of the rate of the host's memory
  double host_bf16_flops = 0;               // FLOP/s of the rank's share of the host's cores
  double op_seconds = 0;                    // least time of a unit's forward: launches, small operators
  Link inside;                              // between ranks of a node
  Link between;                             // between nodes
  // How sums over several ranks of each of several nodes travel: by rings of all ranks (Gloo), or by trees of the nodes
  // (NCCL), by which less enters a node.
  bool sums_by_rings = false;
  double share_seconds = 0;  // for each share of a collective of uneven shares: an op of its own for NCCL
  Sharing sharing = Sharing::kLinks;
  CoreRates core = {};  // of a rank's core
};

// The built-in ones; "cpu" has no instructions for bf16, "cpu-bf16" has them. InvalidArgument lists the known ones.
absl::StatusOr<Hardware> FindHardware(absl::string_view name);

// `world` ranks that fill nodes of `ranks_per_node`, with slots of this memory (0: unknown).
std::vector<RankPlace> FullNodes(uint32_t world, uint32_t ranks_per_node, uint64_t memory_bytes);

}  // namespace muster::strategies
