// Builds the schedule of a training step from a recipe: what the strategies have in common. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "proto/inventory.pb.h"
#include "strategies/schedule/phase.h"
#include "strategies/schedule/schedule.h"

namespace muster {

enum class Parameters {
  kWhole,    // every rank has all of them, and updates all of them
  kUpdated,  // every rank has all of them, updates what it owns, and gathers each in place before its first use in the
             // step
  kKept,     // gathered into a slot of its own from the first use in the step to the last
  kFreed,    // gathered into a slot for each use, forward and backward, and freed after it
};

enum class Gradients {
  kWhole,  // in place; reduced in the last microbatch
  kOwned,  // whole only in a slot, in each microbatch from the first backward that adds to them to their reduction
};

// What lies in host memory.
enum class Offloaded {
  kNothing,
  kOptimizer,   // master weights, owned gradients and the optimizer's state
  kParameters,  // those, and the owned parameters, which are fetched for each gather
};

// The numbers of the groups of an axis that has two levels (LevelGroups); -1: it has one.
struct Levels {
  int32_t inside = -1, between = -1, sums = -1;
  bool any() const { return inside >= 0; }
};

struct ScheduleRecipe {
  int32_t microbatches = 1;
  Parameters parameters = Parameters::kWhole;
  Gradients gradients = Gradients::kWhole;
  bool sharded = false;        // gradients go to their owners
  bool replicated = false;     // gradients are summed over replicas
  bool two_exchanges = false;  // by two exchanges each (Schedule::two_exchanges)
  Offloaded offloaded = Offloaded::kNothing;
  bool recompute = false;  // recompute a unit's saved activations for its backward, if it saves more than its input
  // What a recomputed unit keeps, its input, waits for its backward in host memory, unless the unit before keeps it as
  // its output. Needs `recompute`.
  bool offload_inputs = false;
  int32_t prefetch = 1;  // gathers in progress ahead of the unit that computes
  // Neighboring units are gathered together up to this many bytes of fp32, and reduced together from this many on.
  uint64_t gather_bytes = 0;
  uint64_t reduce_bytes = 0;
  std::vector<bool> even_units = {};  // by unit: its table cuts it into equal ranges; empty: none
  // Of a stage of a pipeline: its passes; empty: each microbatch forward, then back. Its groups and edges as the
  // schedule lists them.
  std::vector<Phase> order = {};
  std::vector<GroupSpec> groups = CommonGroups();
  std::vector<ChunkEdges> edges = {};
  std::vector<TiedEdges> tied = {};
  Levels shard_levels = {}, replica_levels = {};
};

// The backward ends at the first unit that is trained (models::FirstTrained): those before it only have their forwards,
// which keep nothing.
// A slot is held from a unit's gather to its release; a unit that would be gathered again at once is not released. A
// tied tensor's gradient stays in its slot from the first backward that adds to it to the last, and is reduced once.
// With an optimizer in host memory, gradients go there as they are reduced, or from their slots where there is nothing
// to reduce, and each bucket of them has an optimizer step of its own, beside which the bucket before it is fetched.
// A stage without gradients has one step, of all units.
// An input that is offloaded has left the device when the second forward after its unit's begins, and is fetched beside
// the backward of the unit after its own: at any time two inputs wait on the device, one of them on its way.
//
// A stage receives what a pass reads before the pass that comes before it, into a slot that is held until the pass has
// ended, or until the backward has that reads it too; what it computes is in memory of its own. Two of the outputs that
// it sends over an edge may be on their way: the pass that makes a third one waits for the first. A tensor that another
// stage's unit borrows is gathered and sent to it before the first pass of the step, and its gradient is added to the
// owner's after the owner's last pass, before that is reduced.
//
// On an axis with two levels, parameters are gathered between nodes, then inside each; gradients are reduced inside,
// then between: what leaves a node leaves it once. Either part has a stream of its own, so one bucket is reduced inside
// while the one before it travels. Sums over replicas are scattered over those of a node, summed between nodes, and
// gathered. A sum of two exchanges begins its second one when the next bucket has begun its first.
//
// Where the order has phases of kBackwardWeights (zero bubble: Qi et al. 2024), the backward of units that split is
// BackwardInputs, and BackwardWeights in that phase, by which gradients count as added; other units have a whole
// Backward. Parameters need not be gathered for BackwardWeights, what a stage received is no longer read by it, and
// ranks that compute a unit together, or share sequences, exchange nothing in it.
Schedule Build(const Inventory& inventory, const ScheduleRecipe& recipe);

// Whether the unit's code can compute the gradients of its parameters after that of its input, and some are trained.
// Not with adapters, whose gradients read parameters.
bool SplitsBackward(const Unit& unit);

// A forward pass with parameters as in training, in the same slots.
Schedule BuildEvaluation(const Inventory& inventory, const ScheduleRecipe& recipe);

}  // namespace muster
