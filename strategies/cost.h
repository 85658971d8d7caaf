// How long each op of a schedule takes on assumed hardware, and from that the step. Pure.
//
// Compute takes its FLOPs over the rate of GEMMs, plus the bytes between GEMMs over the memory's rate; a backward takes
// twice a forward. Of one that is split, the second half is GEMMs alone, whose FLOPs the inventory states, and all that
// lies between GEMMs is in the first. A collective moves
// data as rings do: into each rank, over the links of a node, all bytes but its own share; into each node, over all its
// ports together, as many; the slower of the two counts. Its latency is that of a ring, so it grows with the ranks;
// where the table is uneven, each share adds its own. A sum over ranks takes twice the bytes, and goes up and down a
// tree of log2(ranks) hops. What units exchange inside their passes adds to the time of compute. Sums of NCCL's trees,
// and whatever is between one rank of each node, enter a node with the other nodes' share alone. What is offloaded goes
// over the link to the host, inputs of units as fp32, and is updated at the rate of its memory. With uneven ownership
// the rank that owns least bounds the time, since it receives most. Every rank is assumed to be the slowest one: the
// most sequences, the most owned elements.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "strategies/compile.h"
#include "strategies/hardware.h"
#include "strategies/schedule/simulate.h"

namespace muster::strategies {

// How fast a rank computes a job, whatever its layout.
struct Rates {
  double flops = 0;     // of GEMMs
  double slowdown = 1;  // of compute, where ranks of a node share its cores
  double memory_bytes_per_second = 0;
  double op_seconds = 0;
  double width = 4;  // bytes of an element that it computes with
};
Rates RatesOf(const Train& train, Device device, absl::Span<const RankPlace> ranks, const Hardware& hardware);
// What passes through a unit take: how often the least time of a forward, how often the bytes of one between GEMMs, and
// the FLOPs of a sample.
struct PassWork {
  double launches = 0, moves = 0, flops = 0;
};
PassWork Forwards(const Unit& unit, double forwards);
// Of a backward that is split.
PassWork BackwardInputsWork(const Unit& unit);
PassWork BackwardWeightsWork(const Unit& unit);
// Of a unit of so many elements of parameters, and of so many samples in all.
OpCost PassCost(const Rates& rates, const Unit& unit, double elements, double samples, const PassWork& work);

// The groups of one kind, as the cost model sees them: the most ranks and the most nodes of any group.
struct GroupTopology {
  uint32_t ranks = 1;
  uint32_t nodes = 1;
  uint32_t least_on_node = 1;  // their ports carry the traffic into the node
};
// Of the groups that have ranks of `stage`.
GroupTopology TopologyOf(const GroupSpec& group, const Mesh& mesh, uint32_t stage, absl::Span<const RankPlace> ranks);
// Of a collective by a ring. A rank receives `incoming` of the bytes, and so does a node, over its ports.
OpCost Moved(const GroupTopology& group, const Hardware& hardware, double bytes, double incoming);
// Whether the group's collectives occupy the network alone (OpCost): one rank of each node; of ranks on CPUs any on
// several nodes, since the network is slower than they move bytes.
bool IsNetwork(const GroupTopology& group, const Hardware& hardware);
// Of a sum on every rank.
OpCost Summed(const GroupTopology& group, const Hardware& hardware, double bytes);

// The ranks with which a unit's passes exchange: those that compute it together, and those that share its sequences.
struct ExchangeTopologies {
  GroupTopology tensor, context;
};
// What those exchanges inside a unit's pass over so many samples add to the seconds that the pass computes,
// `computing`. Part of the sums is under way meanwhile. `width`: bytes of an element that GEMMs compute in. What layers
// with attention exchange, inputs and results of GEMMs, keys and values, has it.
OpCost TensorExchangeCost(const Inventory& inventory, const Unit& unit, Pass pass, double width, double samples,
                          double computing, const ExchangeTopologies& groups, const Hardware& hardware);

struct Predicted {
  std::vector<OpCost> costs;  // by op of the training schedule
  Timeline timeline;
  // Seconds of computing that are exchanges of ranks that compute units together, or share sequences.
  double exchanged = 0;
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
