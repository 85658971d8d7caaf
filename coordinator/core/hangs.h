// Detects ranks that run but make no progress. Workers measure stalls by their own clocks, from each rank's progress
// page. The core sees all ranks and decides which one is at fault. Private to coordinator/core.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "coordinator/core/generations.h"

namespace muster::core {

class Hangs {
 public:
  // All outlive it.
  Hangs(const Options* options, Records* records, Generations* generations)
      : options_(options), records_(records), generations_(generations) {}

  // A worker's report of a running rank: its progress.
  void Note(JobEntry& job, const NodeEntry& node, const ObservedRank& seen, SteadyTime now) const;
  // After Note: stops the generation if one of its ranks hangs.
  void Check(JobEntry& job, uint32_t reporter, Transaction& transaction);

 private:
  static bool WaitsForAnotherStage(const JobEntry& job, const RankPlacement& rank);
  // `otherwise`: none of them waits for activations or gradients.
  static uint32_t StageThatAllWaitFor(const JobEntry& job, const Generation& generation, uint32_t otherwise);
  // By rank: what is known of the ranks that exchange values with it inside the op that it has issued last, and are at
  // the same op. Empty: it has no count to compare.
  struct Entered {
    uint64_t least = 0, most = 0;  // begun by one of them, itself included
    uint32_t first = 0;            // rank that has begun the most
  };
  static std::map<uint32_t, Entered> EnteredOf(const JobEntry& job, const Generation& generation);
  static std::string WhereInside(uint64_t begun, const Entered& all);
  absl::Duration LimitOf(const JobEntry& job, const RunningGeneration::RankProgress& slowest) const;
  void Fail(JobEntry& job, const RankPlacement& culprit, const RunningGeneration::RankProgress& progress,
            Transaction& transaction);

  const Options* const options_;
  Records* const records_;
  Generations* const generations_;
};

}  // namespace muster::core
