// What `muster sweep` decides: which trials there are, and which of them are stopped. The same flags give the same
// trials, and the same metrics the same decisions, so a sweep that was interrupted goes on where it was. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/spec/reader.h"

namespace muster::cli {

// "optimizer.lr=3e-4", of --array or --random.
using Trial = std::vector<Assignment>;

// `count` random trials: of each array one of its values, of each range ("PATH=LOW..HIGH", "PATH=log:LOW..HIGH") a
// number between them, on a logarithmic scale with "log:". The same `seed` gives the same. InvalidArgument: an array or
// a range.
absl::StatusOr<std::vector<Trial>> RandomTrials(const std::vector<std::string>& arrays,
                                                const std::vector<std::string>& ranges, uint32_t count, uint64_t seed);

// How a trial stands, as successive halving needs it.
struct TrialProgress {
  bool ended = false;                 // it will report no more steps
  bool failed = false;                // and has no result: it comes last
  std::map<uint64_t, double> values;  // of the metric, by step
};

struct Halving {
  std::vector<uint64_t> rungs;  // steps, ascending
  double keep = 0.5;            // the share of the trials at a rung that goes on; at least one
  bool maximize = false;
};

// Which trials are out, each with the step of the rung that it lost: at every rung that all the trials that are left
// have reached, or have ended before, those with the worst values at that step (Jamieson and Talwalkar 2016,
// synchronous successive halving). Of equals the earlier trial goes on.
std::map<size_t, uint64_t> LosersOf(const Halving& halving, const std::vector<TrialProgress>& trials);

}  // namespace muster::cli
