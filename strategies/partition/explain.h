// Explains a partition table: balance, each unit's busiest owner, what was cut and why, ranges per gather.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"

namespace muster::partition {

// Bytes are of master weights: fp32, padding included. AdamW's state takes twice as many.
struct UnitExplanation {
  std::string unit;
  uint64_t bytes = 0;
  uint32_t busiest = 0;  // the shard that owns most of it relative to its weight: its broadcast takes longest
  uint64_t busiest_bytes = 0;
  uint64_t largest_bytes = 0;  // most that any shard owns of it
  double share = 0;            // busiest_bytes / bytes
  double over = 0;             // share over the shard's part of all weights: 1 is the best
  uint32_t owners = 0;
  uint32_t ranges = 0;  // of a gather; as many as there are owners in a chained table
};

struct CutTensor {
  std::string tensor;
  uint32_t parts = 0;   // where ranks compute a unit together, the most of any share of it
  bool larger = false;  // larger than what any shard owns of its unit; otherwise a share had less left than the tensor
};

// Where tensors are cut.
enum class Cuts {
  kRows,   // each by its own rows: the table is not chained
  kEqual,  // where equal parts of a unit meet
  kFitted  // where a share is full
};

struct Explanation {
  std::vector<uint64_t> bytes;  // by shard
  double over_mean = 0;         // the largest, over the mean
  double over_share = 0;        // the largest over what its weight entitles it to; equals over_mean where all are equal
  std::vector<UnitExplanation> units;
  std::vector<CutTensor> cut;
  uint32_t tensors = 0;  // in all, whatever their shares
  uint32_t tensor_ranks = 1;
  uint32_t most_ranges = 0;
  Cuts cuts = Cuts::kFitted;
};

// `weights`: one for each shard, as the planner used; empty: all equal. REQUIRES: the table passed Check.
Explanation Explain(const PartitionTable& table, const Inventory& inventory, absl::Span<const uint64_t> weights = {});

// A few lines for users; similar layers share one. `measure`: what the weights are, "memory" or "speed".
std::vector<std::string> Lines(const Explanation& explanation, const std::string& measure = "memory");

}  // namespace muster::partition
