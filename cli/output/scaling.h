// The results of `muster bench`: how fast one job runs on different numbers of ranks, by different strategies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/output/table.h"
#include "proto/job.pb.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// The result for one number of ranks.
struct Scaling {
  std::string strategy = {};  // empty: the job's own
  uint32_t ranks = 0;
  uint32_t sequences = 0;   // a step, over all ranks
  uint64_t steps = 0;       // measured steps
  double step_seconds = 0;  // median
  double least_seconds = 0;
  double tokens_per_second = 0;    // at the median
  double samples_per_second = 0;   // sequences
  uint64_t peak_memory_bytes = 0;  // of rank 0
  std::optional<double>
      communication;             // median share of a step in which rank 0 waited for other ranks; nullopt: unknown
  double predicted_seconds = 0;  // of a step, by the plan; 0: it has no prediction
};

// What the plan predicts; its step is the measured one, too. `steps` is 0.
Scaling Predicted(const v1::PlanReply& plan, uint32_t ranks);

// Skips the first `warm_up` of `points`. Nullopt: no later point has a time.
std::optional<Scaling> Summarise(const std::vector<v1::MetricPoint>& points, uint64_t warm_up, uint32_t ranks,
                                 uint32_t sequences);

// Speed-up and efficiency are against the first row: samples/s over its samples/s, and that over the ratio of ranks.
Table ScalingTable(const std::vector<Scaling>& rows);
nlohmann::ordered_json ScalingTree(const std::vector<Scaling>& rows);

}  // namespace muster::cli
