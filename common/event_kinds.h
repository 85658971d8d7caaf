// The kinds of state events (StateEvent.kind), as `muster events` shows them and destinations of notices name them.
// Here because the coordinator and the CLI both check such names.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace muster {

// Tests of the core fail at an event whose kind is missing here.
inline constexpr absl::string_view kEventKinds[] = {
    "checkpoint.published",
    "checkpoint.reported",
    "checkpoint.skipped",
    "generation.ended",
    "generation.starting",
    "generation.strategy",
    "job.cancelled",
    "job.completed",
    "job.failed",
    "job.outdated",
    "job.paused",
    "job.queued",
    "job.running",
    "job.stopping",
    "job.time_limit",
    "job.waiting",
    "link.recovered",
    "link.slow",
    "node.away",
    "node.clock",
    "node.drained",
    "node.draining",
    "node.faulty",
    "node.forgotten",
    "node.joined",
    "node.leaving",
    "node.lost",
    "node.ready",
    "node.returned",
    "node.spared",
    "node.undrained",
    "node.unready",
    "project.deleted",
    "project.set",
    "rank.exited",
    "rank.hung",
    "rank.idle",
    "reservation.began",
    "reservation.deleted",
    "reservation.ended",
    "reservation.set",
    "slot.freed",
    "slot.stuck",
    "store.restored",
    "sync.left_out",
    "sync.rolled_back",
};

// "job.failed", or a family of them: "job".
inline bool IsEventKind(absl::string_view text) {
  return std::any_of(std::begin(kEventKinds), std::end(kEventKinds), [&](absl::string_view kind) {
    return absl::ConsumePrefix(&kind, text) && (kind.empty() || kind[0] == '.') && !text.empty();
  });
}

// What IsEventKind accepts, sorted: each family before its kinds.
inline std::vector<std::string> EventKindsAndFamilies() {
  std::vector<std::string> names;
  for (const absl::string_view kind : kEventKinds) {
    names.emplace_back(kind);
    names.emplace_back(kind.substr(0, kind.find('.')));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

}  // namespace muster
