#include "common/timeouts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr int kStepsUntilHung = 10;

}  // namespace

Timeouts Derive(absl::Duration detection) {
  Timeouts t;
  t.kill = std::clamp(detection / 5, absl::Seconds(1), absl::Seconds(10));
  t.detection = detection;
  t.node_grace = detection;
  t.mass_grace = 30 * detection;
  t.startup_grace = std::max(absl::Seconds(15), 1.5 * detection);
  t.kill_grace = std::clamp(detection, absl::Seconds(2), absl::Seconds(30));
  t.hang = 3 * detection;
  t.stop = std::max(absl::Seconds(30), 3 * detection);
  t.start = std::max(absl::Minutes(5), 6 * detection);
  t.collective = 2 * t.start;
  return t;
}

Timeouts Stretch(const Timeouts& service, absl::Duration detection) {
  if (detection <= service.detection) return service;
  Timeouts stretched = Derive(detection);
  // The operator may have set this one: it depends on how long trainers take to load.
  stretched.start = std::max(stretched.start, service.start);
  stretched.collective = 2 * stretched.start;
  return stretched;
}

absl::Status Validate(const Timeouts& t, absl::Duration orphan_grace) {
  struct Pair {
    const char* shorter;
    absl::Duration a;
    const char* longer;
    absl::Duration b;
  };
  const Pair pairs[] = {
      {"zero", absl::ZeroDuration(), "kill", t.kill},
      {"zero", absl::ZeroDuration(), "detection", t.detection},
      {"detection and node_grace together", t.detection + t.node_grace, "hang", t.hang},
      {"hang", t.hang, "collective", t.collective},
      {"start", t.start, "collective", t.collective},
      {"kill", t.kill, "stop", t.stop},
      {"detection", t.detection, "orphan_grace", orphan_grace},
  };
  for (const Pair& pair : pairs) {
    if (pair.a < pair.b) continue;
    return absl::InvalidArgumentError(absl::StrCat(pair.longer, " (", absl::FormatDuration(pair.b),
                                                   ") must be longer than ", pair.shorter, " (",
                                                   absl::FormatDuration(pair.a), ")"));
  }
  return absl::OkStatus();
}

absl::Duration HangLimit(const Timeouts& t, absl::Duration slowest_step) {
  absl::Duration shortest = t.collective;
  for (const AxisTimeout& axis : t.axes) shortest = std::min(shortest, axis.collective);
  return std::min(std::max(t.hang, kStepsUntilHung * slowest_step), shortest - t.detection / 2);
}

absl::Duration LeastOfAxis(const Timeouts& t) { return t.hang + t.detection; }

std::vector<TimeoutRule> Rules(const Timeouts& t) {
  std::vector<TimeoutRule> rules = {
      {"grace before surviving ranks are killed after a fault", t.kill, "detection / 5, 1 s to 10 s"},
      {"a silent worker is marked away", t.detection, "detection"},
      {"an away worker is marked lost, with its ranks", t.node_grace, "detection"},
      {"an away worker is marked lost, if more than 3 in 10 nodes are away", t.mass_grace, "30 x detection"},
      {"grace after a coordinator restart before nodes are declared lost", t.startup_grace,
       "1.5 x detection, at least 15 s"},
      {"a trainer that ignores SIGTERM is killed", t.kill_grace, "detection, 2 s to 30 s"},
      {"a rank without progress counts as hung", t.hang,
       absl::StrCat("3 x detection, at least ", kStepsUntilHung, " x the slowest steps")},
      {"a rank stops on request, including its checkpoint", t.stop, "3 x detection, at least 30 s"},
      {"every rank finishes its first step", t.start, "6 x detection, at least 5 m"},
      {"a collective fails: a peer did not arrive", t.collective, "2 x the time to start"},
  };
  for (const AxisTimeout& axis : t.axes) {
    rules.push_back({absl::StrCat("a collective along the ", axis.axis, " axis fails: a peer did not arrive"),
                     axis.collective, absl::StrCat("communication.timeout_seconds.", axis.axis)});
  }
  std::stable_sort(rules.begin(), rules.end(),
                   [](const TimeoutRule& a, const TimeoutRule& b) { return a.time < b.time; });
  return rules;
}

}  // namespace muster
