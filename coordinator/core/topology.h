// Where nodes are, by their labels: what a job's spec says of nodes, for the scheduler and for users. Private to
// coordinator/core.
#pragma once

#include <set>
#include <string>

#include "coordinator/core/records.h"
#include "coordinator/scheduler/place.h"

namespace muster::core {

// Gives a demand what the spec says of nodes: which to avoid, whether to spread over them, and which are near each
// other.
void Select(const Resources& resources, const Records& records, scheduler::Demand& demand);

// "switch s1 and s2, rack r1": the topology domains of those nodes, of each level that the spec names. Empty: it names
// none.
std::string DomainsOf(const Resources& resources, const Records& records, const std::set<std::string>& nodes);

}  // namespace muster::core
