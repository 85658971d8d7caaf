// Where the time of a step went, for people and for trace viewers. Pure.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "cli/output/table.h"
#include "proto/trace.pb.h"

namespace muster::cli {

// The Trace Event Format, which ui.perfetto.dev and chrome://tracing read: a process a rank, a thread a stream, times
// in microseconds since the earliest step (by the nodes' clocks).
nlohmann::ordered_json ChromeTrace(const std::vector<v1::RankTrace>& ranks);

enum class TraceRows { kKind, kUnit, kOp };  // "Backward", "h.3", "Backward h.3 m0"

// Milliseconds of one rank, a mean over its steps; collectives of other streams than compute are in no row.
struct StepProfile {
  struct Row {
    std::string name;
    double spans = 0;                        // a step
    double milliseconds = 0;                 // a step
    double least = 0, median = 0, most = 0;  // of one span
  };
  uint64_t first_step = 0, last_step = 0;
  double milliseconds = 0;  // a step, by the clock
  std::vector<Row> rows;    // longest first; "(between)" is what lies in no span: together they are the step
  double collectives = 0;   // at least one was under way
  double hidden = 0;        // of that, while an op computed
};

// `rank` has a step.
StepProfile Profile(const v1::RankTrace& rank, TraceRows by);
Table ProfileTable(const StepProfile& profile);

}  // namespace muster::cli
