// From a resolved training spec to what each rank owns, does and needs. The coordinator plans with it, each trainer
// compiles with it, and both compare digests. The one place that lists the strategies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster::strategies {

// Bytes that a rank needs, all at the same time where it matters.
struct Memory {
  uint64_t parameters = 0;
  uint64_t gradients = 0;
  uint64_t optimizer_state = 0;
  uint64_t gather_buffers = 0;
  uint64_t reduce_buffers = 0;  // gradients in the dtype in which they travel, where that is another than theirs
  uint64_t activations = 0;     // the peak of the schedule's walk
  uint64_t peak = 0;            // predicted peak of all together
};

// How a job is laid out over its ranks.
struct Layout {
  PartitionTable table;
  std::string table_sha256;     // of the table's deterministic serialisation
  std::vector<RankRole> roles;  // by rank
};

struct RankProgram {
  Schedule schedule;
  std::string digest;
  Memory memory;
};

// Unimplemented: a strategy of the spec that this build does not have yet; InvalidArgument: it does not fit `world`
// (single with 2 ranks). Messages begin with the field's path, "strategy: ".
absl::StatusOr<Layout> MakeLayout(const Train& train, const Inventory& inventory, uint32_t world);

// `train` must be resolved. Errors as MakeLayout.
absl::StatusOr<RankProgram> Compile(const Train& train, const Inventory& inventory, const Layout& layout,
                                    uint32_t rank);

// The lowest rank whose program is the same as this one's, so that plans of many ranks are quick.
uint32_t SameProgramAs(const Train& train, uint32_t rank);

// A rank's part of `sequences` that come one after another: all parts together are all of them, in the order of the
// ranks; the first ones have one more where it does not divide.
struct Share {
  uint64_t first = 0;
  uint64_t sequences = 0;
};
Share ShareOf(uint64_t sequences, uint32_t world, uint32_t rank);

// Microbatches of a step, the same on every rank: the largest share of the batch over `microbatch`, rounded up.
uint32_t Microbatches(const Batch& batch, uint32_t world);

}  // namespace muster::strategies
