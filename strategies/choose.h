// strategy: auto: the fastest strategy that fits, by the simulator. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "strategies/cost.h"
#include "strategies/fit.h"
#include "strategies/hardware.h"

namespace muster::strategies {

struct Candidate {
  std::string name;
  Train train;              // concrete
  uint64_t peak_bytes = 0;  // of the rank that needs most
  double step_seconds = 0;  // predicted
  std::string unfit;        // empty: it fits
  std::string lost;         // why it was not chosen; empty: it was
  bool least = false;       // parallel: auto: it was not planned; peak and step are lower bounds
};

struct Choice {
  std::vector<Candidate> candidates;  // simplest first; of parallel: auto as ChooseMesh has them
  size_t chosen = 0;
  bool fits = false;        // otherwise the chosen one is the one that needs least
  std::string reason;       // one line: what was chosen, by which figures, and what does not fit
  std::string stopped;      // of ChooseMesh: the search ended with ways left that may be as good; empty: it did not
  uint64_t least_peak = 0;  // smallest of all candidates: no smaller slot suits the job; of ChooseMesh 0, not known
  MemoryPlan memory_plan;   // of the chosen candidate

  const Train& train() const { return candidates[chosen].train; }
};

// Candidates are, for the ranks of each stage of a pipeline, single on one rank; ddp, zero 1 and 2, fsdp shard_grad_op
// and full_shard on several, and hybrid on several nodes with equally many ranks. Where the spec does not set
// activation checkpointing, single and full_shard are also tried with it. Takes the fastest that fits, but prefers a
// simpler one that is less than 2% slower. With parallel: auto, ChooseMesh. REQUIRES: `train` is resolved and its
// strategy auto. Errors as Compile.
absl::StatusOr<Choice> Choose(const Train& train, const Inventory& inventory, absl::Span<const RankPlace> ranks,
                              const Hardware& hardware, Budget* budget = nullptr);

// Of the ranks of one stage, simplest first: single on one; ddp, zero 1 and 2, fsdp shard_grad_op and full_shard on
// several, and hybrid on several nodes with equally many ranks. Those that offload.parameters and the compression go
// with.
std::vector<Strategy> DataStrategies(const Train& train, absl::Span<const RankPlace> ranks);

// Of a candidate that lost to one as fast.
inline constexpr char kAsFast[] = "as fast, less simple";

// "1.2 s", "310 ms", "1d 21h".
std::string TimeText(double seconds);

}  // namespace muster::strategies
