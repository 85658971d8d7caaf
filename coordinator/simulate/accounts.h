// What the judge's checks share.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/ids.h"
#include "proto/job.pb.h"

namespace muster::simulate {

inline bool Terminal(JobState state) {
  return state == JOB_STATE_COMPLETED || state == JOB_STATE_FAILED || state == JOB_STATE_CANCELLED;
}

inline std::string Text(const JobId& job, uint64_t generation) { return absl::StrCat(job.value(), "/", generation); }

inline constexpr double (TimeBreakdown::*kLabels[])() const = {
    &TimeBreakdown::queued,           &TimeBreakdown::starting,  &TimeBreakdown::training,
    &TimeBreakdown::checkpoint_stall, &TimeBreakdown::detecting, &TimeBreakdown::recovering,
    &TimeBreakdown::recomputing,      &TimeBreakdown::paused};

inline double Sum(const TimeBreakdown& time_breakdown) {
  double sum = 0;
  for (const auto& label : kLabels) sum += (time_breakdown.*label)();
  return sum;
}

}  // namespace muster::simulate
