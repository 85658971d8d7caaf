// Derives every time-out of the service from the one that the user sets: how long a fault may go undetected.
//
//   const Timeouts timeouts = Derive(absl::Seconds(10));
//   if (absl::Status s = Validate(timeouts, orphan_grace); !s.ok()) ...
//
// Pure values. Each time-out is shorter than the one that would blame another rank or node for the same fault: a lost
// node is detected before its peers, which stall, count as hung; a hung rank is detected before its peers stop waiting
// for it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace muster {

// What a job sets for collectives along one axis of its mesh.
struct AxisTimeout {
  std::string axis;  // "tensor"
  absl::Duration collective;
};

struct Timeouts {
  absl::Duration kill;            // from a fault until the rest of its generation is killed: it has nothing to save
  absl::Duration detection;       // silence until a worker daemon counts as gone
  absl::Duration node_grace;      // from then until its ranks count as lost
  absl::Duration mass_grace;      // from then, if so many nodes are away at once that a network fault is likelier
  absl::Duration startup_grace;   // from the coordinator's start until it may count a node as lost
  absl::Duration kill_grace;      // from a trainer's SIGTERM to its SIGKILL
  absl::Duration hang;            // without progress, until a rank counts as hung; longer where steps are slow
  absl::Duration stop;            // for a rank to stop cleanly, including its checkpoint
  absl::Duration start;           // for every rank of a generation to run, and for its first step
  absl::Duration collective;      // after which a rank stops waiting for its peers
  std::vector<AxisTimeout> axes;  // where a job sets another time than `collective`
};

// Ordered for every `detection`. Below a second it makes no sense: workers report once a second.
Timeouts Derive(absl::Duration detection);

// The time-outs of a job that allows a longer detection than the service; otherwise unchanged.
Timeouts Stretch(const Timeouts& service, absl::Duration detection);

// InvalidArgument names two time-outs that are in the wrong order. `orphan_grace`, after which a rank without a worker
// daemon ends, is not derived: it must outlast an outage of the coordinator, and so at least its detection.
absl::Status Validate(const Timeouts& timeouts, absl::Duration orphan_grace);

// How long a rank may make no progress before it counts as hung. `slowest_step`: the 99th percentile of recent steps;
// zero: none yet. Always shorter than `collective` and those of axes.
absl::Duration HangLimit(const Timeouts& timeouts, absl::Duration slowest_step);

// The least time that a job may set for an axis: a hung rank is detected before its peers stop waiting.
absl::Duration LeastOfAxis(const Timeouts& timeouts);

// A rule for display.
struct TimeoutRule {
  std::string what;  // "a rank that makes no progress has hung"
  absl::Duration time;
  std::string rule;  // "3 x detection, at least 10 x the slowest steps"
};
std::vector<TimeoutRule> Rules(const Timeouts& timeouts);  // ascending

}  // namespace muster
