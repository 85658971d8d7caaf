// What the exchanges between the replicas of a run with local steps take (spec.proto, Sync), as far as plans depend on
// it. The exchanges themselves: worker/trainer/local_steps.h. Pure.
//
// Of each share of a replica's model, one rank fetches the other replicas' contributions, one after another, and the
// ranks with the same share fetch them from it. Every fetch is a connection of its own, whose window grows from ten
// segments (RFC 6928) to what the link holds, doubling in each round trip (RFC 5681, section 3.1).
#pragma once

#include "absl/types/span.h"
#include "strategies/compile.h"
#include "strategies/hardware.h"

namespace muster::strategies {

// Of the rank that owns most. Replicas are as far from each other as the nodes of one, and the coordinator is near.
struct ReplicaExchange {
  double sent_bytes = 0;    // to each other replica, of the whole model
  double kept_bytes = 0;    // in host memory
  double seconds = 0;       // of one fragment, from the contribution to the result
  double step_seconds = 0;  // that exchanges add to a step in the mean: what no training overlaps
};

// `train` is resolved and has `sync`. `step_seconds`: of a step without exchanges.
ReplicaExchange PredictExchange(const Train& train, const Inventory& inventory, const Layout& layout, Device device,
                                absl::Span<const RankPlace> ranks, const Hardware& hardware, double step_seconds);

}  // namespace muster::strategies
