// Where the time of a step went, for users and for trace viewers. Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/output/screen.h"
#include "cli/output/table.h"
#include "proto/trace.pb.h"

namespace muster::cli {

// "rank 2 (stage 1, tensor 0) on node-0".
std::string RankLabel(const v1::RankTrace& rank);

// The Trace Event Format, which ui.perfetto.dev and chrome://tracing read: a process a rank, a thread a stream, times
// in microseconds since the earliest step (by the nodes' clocks).
nlohmann::ordered_json ChromeTrace(const std::vector<v1::RankTrace>& ranks);

enum class TraceRows { kKind, kUnit, kOp };  // "Backward", "h.3", "Backward h.3 m0"

// Milliseconds of one rank, averaged over its steps; collectives on streams other than compute have no row. Where units
// wait for collectives inside their passes, that time is the row "Exchange", and not the op's.
struct StepProfile {
  struct Row {
    std::string name;
    double spans = 0;                        // a step
    double milliseconds = 0;                 // a step
    double least = 0, median = 0, most = 0;  // of one span
  };
  uint64_t first_step = 0, last_step = 0;
  double milliseconds = 0;  // a step, by the clock
  std::vector<Row> rows;    // longest first; "(between)" is time outside of spans, so that the rows sum to the step
  double collectives = 0;   // time in which at least one was in progress
  double hidden = 0;        // part of `collectives` in which an op computed and did not wait
};

// REQUIRES: `rank` has a step.
StepProfile Profile(const v1::RankTrace& rank, TraceRows by);
Table ProfileTable(const StepProfile& profile);
// "rank 1 (tensor 1) on node-a, steps 7 to 8: 10.00 ms a step, collectives 3.00 ms, 67% of them overlapped with
// compute", in lines as wide as the screen.
std::string ProfileHeadline(const v1::RankTrace& rank, const StepProfile& profile, const Screen& screen);
// The same, and the rows, for -o json. The rank's place has the names of RankRole's fields.
nlohmann::ordered_json ProfileTree(const v1::RankTrace& rank, const StepProfile& profile);

}  // namespace muster::cli
