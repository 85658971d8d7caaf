// What the core needs to know about a job's layout. Injected, so that the core's tests may run gangs of any size
// without a strategy for them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/hardware.h"
#include "strategies/partition/planners.h"

namespace muster::core {

// What is known of the slots that a job's ranks get.
struct Slots {
  std::vector<RankPlace> ranks;        // by rank; nodes numbered in the order of the ranks
  Device device = DEVICE_UNSPECIFIED;  // resolved
  std::string model;                   // of the device of rank 0: "NVIDIA H200"; may be empty
  bool fast_bf16 = false;              // every node's CPU is known to have instructions for bf16
};

// Why a job cannot start on its slots, though it could elsewhere.
struct Unfit {
  std::string why;          // numbers, and what would fit
  uint64_t slot_bytes = 0;  // no slot of less memory suits any of its ranks; 0: that depends on the others
};

struct Planned {
  PartitionTable table;
  std::string table_sha256;
  std::vector<RankRole> roles;       // by rank
  std::vector<std::string> digests;  // of each rank's schedule
  // strategy: auto, resolved, and why; none: the spec's.
  std::optional<Strategy> strategy;
  bool activation_checkpointing = false;  // goes with it
  std::string strategy_reason;
  std::optional<Unfit> unfit;  // none: every rank fits, as far as its slot's memory is known
};

// Of a resolved spec on given slots. Pure: the same answer in every process of one build. InvalidArgument,
// Unimplemented: it cannot be laid out so; the job fails with that message.
using Planner = std::function<absl::StatusOr<Planned>(const JobSpec& spec, const Slots& slots)>;

// The real one: by models and strategies, as each trainer does it.
absl::StatusOr<Planned> PlanByStrategies(const JobSpec& spec, const Slots& slots);

// What the op of that index in a rank's training step is called: "Gather h.3". Of a spec that was planned on these
// slots, with strategy: auto resolved. Empty: there is no such op.
using OpNamer = std::function<std::string(const JobSpec& spec, const Slots& slots, uint64_t index)>;

std::string NameOpByStrategies(const JobSpec& spec, const Slots& slots, uint64_t index);

// Whether the CPU is known to have instructions for bf16.
bool HasFastBf16(const Cpu& cpu);

// The hardware to predict times for, from the name that the device reports. `fast_bf16` counts for CPUs only.
strategies::Hardware HardwareOf(Device device, const std::string& model, bool fast_bf16 = false);

}  // namespace muster::core
