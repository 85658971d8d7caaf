// Where a pipeline cuts a model: chunks of neighboring units, so that the slowest chunk is as fast as it can be while
// every chunk has the memory that it needs. Pure.
//
//   const std::vector<UnitLoad> units = LoadsOf(inventory);
//   const std::vector<ChunkPlace> places(4);                // four equal stages, whose memory does not matter
//   const absl::StatusOr<Cut> cut = CutUnits(units, places);
//   cut->begins;                                            // {0, 4, 8, 12}
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "strategies/budget.h"

namespace muster::pipeline {

// What a unit takes wherever it is.
struct UnitLoad {
  double work = 0;        // of a sample, forward and back: FLOPs
  double elements = 0;    // of parameters
  double kept_bytes = 0;  // of a sample, from forward to backward; among chunks of equal work, less of it is better
};
std::vector<UnitLoad> LoadsOf(const Inventory& inventory);

// Where a chunk is computed, and what its units need there: element_bytes of each element, and kept_times of what they
// keep (the samples of a microbatch, times microbatches between their forward and their backward).
struct ChunkPlace {
  double speed = 1;  // of equal work it takes 1 / speed of the time
  double element_bytes = 0, kept_times = 0;
  double room_bytes = std::numeric_limits<double>::infinity();
};

struct Cut {
  std::vector<int> begins;  // each chunk's first unit
  // 0: every chunk fits. Otherwise what the chunk that lacks most is short of; every other cut has one that lacks at
  // least as much.
  double lacking_bytes = 0;
  uint32_t lacks = 0;  // that chunk
};

// No chunk is empty. The k-th chunk is at places[k]. Of the cuts that fit, one whose slowest chunk takes the least
// time, and, of these, keeps least: no other cut of up to 512 units is better; of more units, none at places that are
// alike. Of these, one whose chunks are even. A stage of several chunks has a place for each of them, with its share of
// the stage's memory. REQUIRES: 1 <= places <= units. Errors of the budget.
absl::StatusOr<Cut> CutUnits(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                             strategies::Budget* budget = nullptr);

// The same for stages that have several chunks each: the k-th chunk is on stage_of_chunk[k], at
// places[stage_of_chunk[k]]. With one chunk each as CutUnits. Otherwise begins with the fastest slowest chunk, where
// each chunk has an equal part of its stage's memory, and then moves boundaries by a unit while that helps: what stages
// lack, then the rounds of a microbatch, each as slow as its slowest chunk, then the slowest stage, then how even
// stages are. `lacks` is a stage.
absl::StatusOr<Cut> CutStages(absl::Span<const UnitLoad> units, absl::Span<const ChunkPlace> places,
                              absl::Span<const uint32_t> stage_of_chunk, strategies::Budget* budget = nullptr);

}  // namespace muster::pipeline
