// Links between nodes: which pairs a generation measures, and what its ranks found. Figures are kept in the records of
// the nodes that they lead from; when they were measured is only in memory, so a restarted coordinator measures again.
// Private to coordinator/core.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/records.h"
#include "coordinator/core/transaction.h"
#include "coordinator/scheduler/place.h"
#include "strategies/hardware.h"

namespace muster::core {

// Below this part of its usual bandwidth a link is slow.
inline constexpr double kSlowLink = 0.5;
bool IsSlow(const NodeLink& link);

// Pairs of the lowest ranks on nodes, in an order in which as many as can be are measured at once: all pairs of up to
// eight nodes, neighbors in the order of the ranks on more. Without those that were measured less than `valid_for` ago
// and were not slow.
std::vector<LinkPair> PairsToMeasure(const Records& records, const Generation& generation, absl::Duration valid_for,
                                     Now now);

// Stores what a rank reported. A link that fell below half of its usual bandwidth becomes an event of the job; one that
// is no longer slow, too. Figures that are not positive, and ranks that do not exist or share the node, are left out.
void KeepLinks(Records& records, const JobEntry& job, const RankPlacement& rank,
               const google::protobuf::RepeatedPtrField<RankLink>& links, Transaction& transaction);

// The lowest bandwidth and the highest latency of the links that PairsToMeasure would name for these ranks, both
// rounded to two digits so that noise makes no new plan. Nullopt: one node, or a link of them was never measured.
std::optional<strategies::Link> SlowestLink(const Records& records, const std::vector<scheduler::RankSlot>& ranks);
// Of what was measured with the same links: the slowest core's, rounded likewise. 0 where no link has a figure.
strategies::CoreRates SlowestCore(const Records& records, const std::vector<scheduler::RankSlot>& ranks);

// Those measured between the nodes of the generation, with `from`.
std::vector<NodeLink> LinksOf(const Records& records, const Generation& generation);

}  // namespace muster::core
