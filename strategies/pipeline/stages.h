// The stages of a pipeline: which units each has, and its part of the model as a model of its own. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/inventory.pb.h"
#include "proto/partition.pb.h"
#include "proto/spec.pb.h"
#include "strategies/pipeline/cut.h"
#include "strategies/schedule/build.h"
#include "strategies/schedule/mesh.h"

namespace muster::pipeline {

// By unit of the model: its stage.
struct UnitPlace {
  uint32_t stage = 0;
  bool begins_chunk = false;  // though the unit before it is of the same stage
  UnitPlace(uint32_t of_stage = 0, bool begins = false) : stage(of_stage), begins_chunk(begins) {}  // NOLINT: a number
  friend bool operator==(const UnitPlace&, const UnitPlace&) = default;
};
using StageOfUnit = std::vector<UnitPlace>;

// Of chunk c of the model: c modulo the number of stages or, of a zero-bubble pipeline's two chunks a stage, laid out
// in a V: there and back (Qi et al. 2024, section 6).
uint32_t StageOfChunk(PipelineSchedule schedule, uint32_t chunk, uint32_t stages);

// How many there are.
uint32_t Stages(const StageOfUnit& stages);

// The first unit of each of `chunks` chunks on equal stages, whatever their memory. REQUIRES: 1 <= chunks <= units.
std::vector<int> CutEvenly(const Inventory& inventory, uint32_t chunks);

// The stages of a spec: its cut, or that of CutUnits for stages with these speeds and this memory, which a stage's
// chunks have in equal parts; by default equal ones, whatever their memory. InvalidArgument: `pipeline.cut` names a
// unit that does not exist, or in another order, or too few or too many; or there are fewer units than chunks. Messages
// begin with the field's path. Errors of the budget.
absl::StatusOr<StageOfUnit> StagesOf(const Train& train, const Inventory& inventory,
                                     absl::Span<const ChunkPlace> by_stage = {}, strategies::Budget* budget = nullptr);

// Of a table.
StageOfUnit StagesOf(const PartitionTable& table);

// One table of those of all stages, each of all shares of its units' tensors: stage p's share t is of[p * tensor + t]
// (partition::TableOf is the inverse). REQUIRES: each has equally many shards.
PartitionTable Join(const std::vector<PartitionTable>& of, const StageOfUnit& stages, uint32_t tensor = 1);

// A stage's units, with what they read from the unit before.
Inventory StageInventory(const Inventory& inventory, const StageOfUnit& stages, uint32_t stage);

// InvalidArgument: what flows between two stages is unknown.
absl::Status CheckCut(const Inventory& inventory, const StageOfUnit& stages);

// InvalidArgument: a unit of one stage shares tensors with several units of another one, which no schedule can move:
// an op over an edge names one unit at each end. The message names tensors, units and stages.
absl::Status CheckTies(const Inventory& inventory, const StageOfUnit& stages);

// The tensors that a unit of one stage borrows from a unit of another: of the last owner first, in whose order the
// gradients of owners are complete, then in the order of the units that borrow.
std::vector<TiedTensor> TiedTensors(const Inventory& inventory, const StageOfUnit& stages);

// The edges of a pipeline, each once: between the model's chunks on different stages in their order, then those of
// tied tensors. What all
// ranks form groups for.
std::vector<GroupSpec> Edges(const Inventory& inventory, const StageOfUnit& stages);
// A stage's own, as its schedules list them: groups and edges of its chunks. A pipeline of one stage has none.
struct StageEdges {
  std::vector<GroupSpec> groups;  // the common ones come first
  std::vector<ChunkEdges> of_chunk;
  std::vector<TiedEdges> of_tied;
};
StageEdges EdgesOf(const Inventory& inventory, const StageOfUnit& stages, uint32_t stage);

}  // namespace muster::pipeline
