// How long each op of a schedule takes on assumed hardware, and from that the step. Pure.
//
// Compute takes its FLOPs over the rate of GEMMs, plus the bytes between GEMMs over the memory's rate; a backward takes
// twice a forward, and of one that is split, the gradients of weights take what the inventory says. A collective moves
// data as rings and NCCL's trees do: into each rank, over the links of a node, all bytes but its own share; into each
// node, over all its ports together, the share of the other nodes; the slower of the two counts. Its latency is that of
// log2(ranks) hops; where the table is uneven, each share adds its own. A sum over ranks takes twice that. What units
// exchange inside their passes adds to the time of compute. What is offloaded goes over the link to the host, inputs of
// units as fp32, and is updated at the rate of its memory. With uneven ownership the rank that owns least bounds the
// time, since it receives most. Every rank is assumed to be the slowest one: the most sequences, the most owned
// elements.
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

// Before PredictStep. Errors of the budget.
absl::Status SpendOnTimes(absl::Span<const RankProgram> programs, Budget* budget);

// `train` must be resolved and concrete; `ranks` as many as the layout has. Of an outline, the times of the whole step;
// only those of single ops, and their costs, are the outline's. By stage; all stages' times end together.
std::vector<Predicted> PredictStep(const Train& train, const Inventory& inventory, const Layout& layout,
                                   absl::Span<const RankProgram> programs, absl::Span<const RankPlace> ranks,
                                   const Hardware& hardware);

// The stage whose ranks compute longest: the others wait for it.
size_t SlowestStage(absl::Span<const Predicted> stages);

}  // namespace muster::strategies
