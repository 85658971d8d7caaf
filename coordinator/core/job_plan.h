// How a job is laid out on slots: what a generation is started with. Made outside of the core, which asks for it
// (RequestPlan) and gets it as an event (PlanReady), since it may take seconds. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/job.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/budget.h"
#include "strategies/choose.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"
#include "strategies/partition/planners.h"
#include "strategies/schedule/op_names.h"

namespace muster::core {

// What is known of the slots that a job's ranks get.
struct Slots {
  std::vector<RankPlace> ranks;        // by rank; nodes numbered in the order of the ranks
  Device device = DEVICE_UNSPECIFIED;  // resolved
  std::string model;                   // of the device of rank 0: "NVIDIA H200"; may be empty
  bool fast_bf16 = false;              // every node's CPU is known to have instructions for bf16
  // The slowest of the links between their nodes, as earlier ranks measured them; none: one node, or not all are known.
  std::optional<strategies::Link> network = std::nullopt;
  strategies::CoreRates core = {};  // measured with those links
};

// Equal for slots on which the planner gives the same plan for a job.
std::string SignatureOf(const Slots& slots);

// Why a job cannot start on its slots, though it could elsewhere.
struct Unfit {
  std::string why;  // numbers, and what would fit
  // No slot of less memory suits any of its ranks; 0: that depends on the others. Of a mesh that is chosen: a
  // little more than the least slot that it was refused on, since only a part of all ways to run is planned.
  uint64_t slot_bytes = 0;
  uint64_t smallest_bytes = 0;  // of such a mesh: the slot for the one that needs least of those that were planned
  std::string advice = {};      // the end of `why`: what would fit
};

struct Planned {
  PartitionTable table;
  std::string table_sha256;
  std::vector<RankRole> roles;       // by rank
  std::vector<std::string> digests;  // by stage of the pipeline: of its ranks' schedule
  std::vector<OpNames> op_names;     // likewise, of their training step
  // strategy: auto, resolved, or with buckets for the measured network, and why; none: the spec's.
  std::optional<Strategy> strategy;
  bool activation_checkpointing = false;   // goes with it
  std::optional<Compression> compression;  // compression: auto, resolved
  std::optional<Train> chosen;             // parallel: auto, resolved: the fields that take the place of the spec's
  std::string strategy_reason;
  std::optional<Unfit> unfit;  // none: every rank fits, as far as its slot's memory is known
};
using PlannedPtr = std::shared_ptr<const Planned>;

// A name of the plan of a resolved spec on slots: equal only where both are planned alike. Of the spec it leaves out
// what no layout depends on: the job's name, its data, its steps and the like.
std::string PlanKey(const JobSpec& spec, const Slots& slots);

// Stages of its pipeline; ranks that compute each unit together; ranks that share each sequence. Each stage has equally
// many ranks, so a job runs on a multiple of LeastGroupOf: the product.
uint32_t StagesOf(const JobSpec& spec);
uint32_t TensorRanksOf(const JobSpec& spec);
uint32_t ContextRanksOf(const JobSpec& spec);
uint32_t LeastGroupOf(const JobSpec& spec);

// The hardware to predict times for, from the name that the device reports. `fast_bf16` counts for CPUs only.
strategies::Hardware HardwareOf(Device device, const std::string& model, bool fast_bf16 = false);
// Of the slots, with the measured network in place of the assumed one. GPUs have a port each, as the rank that
// measured; CPUs of a node share one, and have a core each as the one that was measured.
strategies::Hardware HardwareFor(const Slots& slots);

// A plan with all that explains it.
struct JobPlan {
  Inventory inventory;
  Train train;                               // concrete: with strategy: auto resolved
  std::optional<strategies::Choice> choice;  // of strategy: auto, without its memory plan
  bool by_mesh = false;                      // with parallel: auto
  strategies::MemoryPlan memory_plan;
  std::vector<strategies::WholeProgram> programs;  // by stage of the pipeline
  std::string compression_reason;                  // of compression: auto: what was chosen, and why
  std::string bucket_reason;  // why buckets are larger than by default, for the measured network; empty: they are not
  std::optional<Unfit> unfit;
};

// Of a resolved spec. The same answer in every process of one build. InvalidArgument, Unimplemented: it cannot be laid
// out so on any slots. ResourceExhausted: planning it takes more than the budget; the message says what is large and
// what to change. Cancelled: by the budget.
absl::StatusOr<JobPlan> PlanJob(const JobSpec& spec, const Slots& slots, const strategies::Hardware& hardware,
                                strategies::Budget* budget = nullptr);

// What a generation needs of it.
Planned PlannedOf(const JobPlan& plan);

// Of an exec job: ranks without a layout. Muster knows nothing of what they own or compute.
Planned PlannedOfProgram(uint32_t ranks);

// Whether the CPU is known to have instructions for bf16.
bool HasFastBf16(const Cpu& cpu);

}  // namespace muster::core
