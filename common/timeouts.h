// Every time-out of the service, from the one that its user sets: how long a fault may stay unnoticed.
//
//   const Timeouts timeouts = Derive(absl::Seconds(10));
//   if (absl::Status s = Validate(timeouts, orphan_grace); !s.ok()) ...
//
// Pure values. Each waits for less than the one that would blame somebody else for the same fault: a lost node is named
// before its peers, which stand still, count as hung; a hung rank before the others give up waiting for it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster {

struct Timeouts {
  absl::Duration kill;        // after a fault, until what is left of its generation is killed: it has nothing to save
  absl::Duration detection;   // of silence, until a worker daemon counts as gone
  absl::Duration node_grace;  // from then, until its ranks are given up
  absl::Duration mass_grace;  // from then, while that many are away at once that a network is likelier to be at fault
  absl::Duration startup_grace;  // after the coordinator's start, until it gives up a node
  absl::Duration kill_grace;     // of a trainer, from SIGTERM to SIGKILL
  absl::Duration hang;           // without progress, until a rank counts as hung; longer where steps are slow
  absl::Duration stop;           // for a rank to stop in good order, its checkpoint included
  absl::Duration start;          // for every rank of a generation to run, and for its first step
  absl::Duration collective;     // after which a rank gives up waiting for its peers
};

// Ordered, whatever `detection` is. Its least useful value is a second: workers say something once a second.
Timeouts Derive(absl::Duration detection);

// Of a job that allows faults to stay unnoticed for longer than the service does; the same where it allows no more.
Timeouts Stretch(const Timeouts& service, absl::Duration detection);

// InvalidArgument: two that must be ordered are not, and which. `orphan_grace`, after which a rank without a worker
// daemon ends, is not derived: it must outlast an outage of the coordinator, and so at least the detection of one.
absl::Status Validate(const Timeouts& timeouts, absl::Duration orphan_grace);

// When a rank that makes no progress counts as hung. `slowest_step`: the 99th percentile of recent steps; zero: none
// was seen. Always shorter than `collective`.
absl::Duration HangLimit(const Timeouts& timeouts, absl::Duration slowest_step);

// For people.
struct TimeoutRule {
  std::string what;  // "a rank that makes no progress has hung"
  absl::Duration time;
  std::string rule;  // "3 x detection, at least 10 x the slowest steps"
};
std::vector<TimeoutRule> Rules(const Timeouts& timeouts);  // ascending

}  // namespace muster
