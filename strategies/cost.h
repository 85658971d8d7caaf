// How long each op of a schedule takes on assumed hardware, and with that the step. Pure.
//
// Computing takes its FLOPs over the rate of GEMMs, and its bytes over the memory's for what lies between them; a
// backward twice a forward. A collective moves, as rings and NCCL's trees do, the whole of its bytes but the own share
// into each rank over the links of a node, and the share of the other nodes into each node over all its ports together;
// the slower of the two counts. Its latency is that of as many hops as its ranks have doublings. A sum over ranks is
// twice that. What ranks own unevenly is bounded by the one that owns least, since it receives most. Every rank is the
// slowest one: the most sequences, the most owned elements.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "strategies/compile.h"
#include "strategies/hardware.h"
#include "strategies/schedule/simulate.h"

namespace muster::strategies {

struct Predicted {
  std::vector<OpCost> costs;  // by op of the training schedule
  Timeline timeline;
};

// `train` must be resolved and concrete; `ranks` as many as the layout has.
Predicted PredictStep(const Train& train, const Inventory& inventory, const Layout& layout, const RankProgram& program,
                      absl::Span<const RankPlace> ranks, const Hardware& hardware);

}  // namespace muster::strategies
