// One simulated cluster from a seed: the coordinator's real core, scheduler and shell under a virtual clock, network
// and disk, with virtual workers, trainers, users and faults, in one thread and thousands of times faster than real
// time. At least 20 workers, 3 jobs, 10 faults and 10 virtual minutes; the judge (judge.h) checks every effect.
//
//   Outcome outcome = Simulate(42);
//   if (!outcome.failure.empty()) Simulate(42, [](const std::string& line) { std::puts(line.c_str()); });
//
// Pure: the same seed gives the same trace, byte for byte, and the same fingerprint of all commits.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"

namespace muster::simulate {

struct Outcome {
  std::string failure;  // "invariant: what happened"; empty: every invariant held
  uint64_t fingerprint = 0;
  uint64_t decisions = 0;  // counted in some seeds: of all commits, without what the wall clock showed
  absl::Duration virtual_time;
  std::map<std::string, uint64_t> counts;  // faults and other events, by name
};

// `trace` gets a line per event, starting with the virtual time; none: no trace, which is faster.
Outcome Simulate(uint64_t seed, const std::function<void(const std::string&)>& trace = nullptr);

}  // namespace muster::simulate
