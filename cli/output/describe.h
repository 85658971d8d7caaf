// A job, a plan, a node as text for users. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/output/screen.h"
#include "cli/output/table.h"
#include "proto/jobs.pb.h"

namespace muster::cli {

Table JobTable(const v1::ListJobsReply& reply, bool wide, const Screen& screen, absl::Time now);
Table NodeTable(const v1::ListNodesReply& reply, bool wide, absl::Time now);
// Which nodes the coordinator has drained by itself, and why: lines, or empty.
std::string NodeNotes(const v1::ListNodesReply& reply);
// Measured links between nodes, with `from`.
Table LinkTable(const std::vector<v1::NodeLink>& links, absl::Time now);
Table MetricsTable(const std::vector<v1::MetricPoint>& points);
// What an event is about: its job, or else its node.
std::string EventSubject(const v1::StateEvent& event);
// On a terminal: "2026-01-01 12:00:00  job.running             gpt2-x7f2  every rank runs", and a newline. The subject
// takes `subject_columns`, or more if it is longer.
std::string EventLine(const v1::StateEvent& event, const Screen& screen, int subject_columns = 0);

struct PlanSections {
  bool schedule = false;          // also list the ops of a step
  bool times = false;             // also show the predicted times
  std::optional<uint32_t> stage;  // of a pipeline: list the ops of this one only
  bool timeouts = false;          // also list the time-outs
};
// What runs where, and the bytes it takes. Identical ranks share a row.
std::string DescribePlan(const v1::PlanReply& plan, const PlanSections& parts, const Screen& screen);
// Whether a note of a plan is about ranks or stages that idle in every step, which no nodes change.
bool IsIdleNote(absl::string_view note);
// One line for a submitted job, without a newline at its end: model, strategy, memory; and a line for each reason why
// it cannot start or wastes ranks.
std::string PlanSummary(const v1::PlanReply& plan, const Screen& screen);

std::string DescribeJob(const v1::GetJobReply& reply, const std::vector<v1::StateEvent>& events, const Screen& screen,
                        absl::Time now);

}  // namespace muster::cli
