// Which nodes a gang gets, of those with free slots. Pure.
//
// Ranks are packed: the emptiest nodes first, until one node can hold all remaining ranks; of such nodes the fullest.
// So they are on as few nodes as possible. Or they are spread (Slurm's --spread-job): over as many nodes as possible,
// and as evenly as their free slots allow. With preferred levels of a topology they get the narrowest domain that has
// enough free slots, and of several the fullest; where none has, domains are packed as nodes are, wide ones before the
// narrow ones in them. Nodes of `last_choice` come after all others. Ties are broken by name.
//
// Each stage of a pipeline is on one node if all of them can be: every node then gets a multiple of a stage's ranks, on
// more nodes if need be, but not in more domains or on more nodes of `last_choice`. Of nodes that hold equally many
// stages the fullest comes first. Else the ranks that share sequences are, likewise. Ranks that are spread are not
// packed so: they are spread evenly.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "coordinator/scheduler/place.h"

namespace muster::scheduler {

struct NodeShare {
  NodeId node;
  uint64_t ranks = 0;
};

// In the order of the ranks, each node once. `free`: how many ranks each node can take, a multiple of demand.together;
// `ranks`: a multiple of demand.multiple. REQUIRES: together they can take all.
std::vector<NodeShare> ShareOut(const std::map<NodeId, uint64_t>& free, uint64_t ranks, const Demand& demand);

// A domain of those with this many free slots, and room for `needed`: the fullest that holds `wanted`, else the
// emptiest; null: none.
const std::string* BestDomain(const std::map<std::string, uint64_t>& free, uint64_t needed, uint64_t wanted);

}  // namespace muster::scheduler
