// When the inputs that recomputed units keep from forward to backward go to host memory and come back, as the
// activation checkpoints of DeepSpeed's cpu_checkpointing (ZeRO, Rajbhandari et al. 2020, section 6.1: P_a+cpu) and
// torch.autograd.graph.save_on_cpu. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "strategies/schedule/events.h"

namespace muster {

// An op on the input of (unit, microbatch), beside an event: of kOffloadInput after it, else before it.
struct InputMove {
  OpKind kind;
  int32_t unit;
  int32_t microbatch;
  uint32_t event;
};

struct InputPlan {
  std::vector<InputMove> moves;                // in the order of events
  std::vector<int32_t> slot_of, host_slot_of;  // by unit; -1: its input stays
  int32_t slots = 0, host_slots = 0;
};

// `events`: of training. `bytes`: by unit, of an input that is offloaded; 0: it stays.
//
// An input is offloaded as soon as there is a forward that reads it, beside that one and the next. It has left the
// device when the forward after those begins, or the backward of the last unit. It is fetched when the backward of the
// unit after its own begins, beside that one. So two inputs are on the device forward, and two slots take them back.
InputPlan PlanInputMoves(const std::vector<Event>& events, const std::vector<uint64_t>& bytes);

}  // namespace muster
