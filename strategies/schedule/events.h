// What the builder of schedules plans with: the passes of a step in their order, what is held around them, and the
// slots that it is held in. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "strategies/schedule/ops.h"

namespace muster {

// Units [begin, end).
struct Span {
  int32_t begin = 0;
  int32_t end = 0;
  uint64_t bytes = 0;
};

// An op of the compute stream.
struct Event {
  OpKind kind;
  int32_t unit;
  int32_t microbatch;
};

// A span is held from before event `begin` until after event `end`.
struct Hold {
  uint32_t span;
  uint32_t begin;
  uint32_t end;
};

// Assigns a slot to each span, the same one for all its holds, in which no other span's holds overlap them; -1: it has
// no hold. The largest spans come first, so that a slot is as large as its first. `holds` of one span are ascending.
std::vector<int32_t> AssignSlots(const std::vector<Span>& spans, const std::vector<Hold>& holds, int32_t& slots);

// Something is held from phase `begin` to phase `end`, both included.
struct Stay {
  uint32_t begin;
  uint32_t end;
};

// Gives each stay, in their order, the first slot that no stay before it holds at its begin. Of n stays it takes
// n log n steps. REQUIRES: begins are ascending, and no end is before its begin.
std::vector<int32_t> FirstFreeSlots(const std::vector<Stay>& stays, int32_t& slots);

}  // namespace muster
