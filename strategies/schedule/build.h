// The schedule of a training step from what lies where: what the strategies have in common. Pure.
#pragma once

#include <cstdint>

#include "proto/inventory.pb.h"
#include "strategies/schedule/schedule.h"

namespace muster {

enum class Parameters {
  kWhole,    // every rank has all of them, and updates all that its shard owns: all
  kUpdated,  // has all of them, updates what it owns; each is gathered in place before its first use in the step
  kKept,     // gathered into a slot of its own from the first use in the step to the last
  kFreed,    // gathered into a slot for each use, forward and backward, and freed behind it
};

enum class Gradients {
  kWhole,  // in place; reduced in the last microbatch
  kOwned,  // whole only in a slot, from the first backward that adds to them to their reduction, in each microbatch
};

struct ScheduleRecipe {
  int32_t microbatches = 1;
  Parameters parameters = Parameters::kWhole;
  Gradients gradients = Gradients::kWhole;
  bool sharded = false;     // gradients go to their owners
  bool replicated = false;  // gradients are summed over replicas
  bool recompute = false;   // what a unit keeps for its backward is computed again, where it is more than its input
  int32_t prefetch = 1;     // gathers under way behind the one whose unit computes
  // Neighbouring units are gathered together up to, and reduced together from, so many bytes of fp32.
  uint64_t gather_bytes = 0;
  uint64_t reduce_bytes = 0;
};

// A slot is held from a unit's gather to its release; a unit that would be gathered again at once is not released. A
// tied tensor's gradient stays in its slot from the first backward that adds to it to the last, and is reduced once.
Schedule Build(const Inventory& inventory, const ScheduleRecipe& recipe);

// A pass forward with parameters as in training, in the same slots.
Schedule BuildEvaluation(const Inventory& inventory, const ScheduleRecipe& recipe);

}  // namespace muster
