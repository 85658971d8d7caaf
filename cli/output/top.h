// The page of `muster top`. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "cli/output/screen.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

// A line of totals, the running and waiting jobs with their metrics, and the nodes with their ranks.
std::string TopPage(const v1::ListJobsReply& jobs, const v1::ListNodesReply& nodes, const Screen& screen,
                    absl::Time now);

}  // namespace muster::cli
