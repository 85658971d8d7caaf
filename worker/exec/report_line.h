// A line of the report file of an exec job: what a script tells Muster (docs/exec.md). Pure.
//
//   {"step": 10, "loss": 2.3, "lr": 1e-3, "accuracy": 0.4}
//   {"checkpoint": "runs/step-10", "step": 10}
#pragma once

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/job.pb.h"
#include "proto/records.pb.h"
#include "worker/rundir/outbox.h"

namespace muster::exec {

inline constexpr size_t kMaxReportLine = 16 * 1024;
inline constexpr int kMaxReportedMetrics = 64;
inline constexpr size_t kMaxMetricName = 64;
inline constexpr size_t kMaxCheckpointName = rundir::kMaxCheckpointNameBytes;
inline constexpr uint64_t kMaxReportedStep = 1'000'000'000'000;

// Without times. Names with a field of their own in MetricPoint take it: loss, lr, learning_rate, grad_norm,
// gradient_norm, val_loss, validation_loss, step_seconds, tokens_per_second, samples_per_second. Values are numbers, or
// the strings "nan", "inf" and "-inf"; keys with other values are left out, and so are names with characters other than
// [A-Za-z0-9_./-].
// InvalidArgument: no JSON object, no step, or a step, checkpoint or number of metrics out of range.
using Report = std::variant<MetricPoint, CheckpointWritten>;
absl::StatusOr<Report> ParseReport(absl::string_view line);

// Letters, digits and _./-
bool IsMetricCharacter(char c);
// Sets the metric of a point, in its own field if the name has one (ParseReport). A name that the point has gets the
// new value. False: the point has kMaxReportedMetrics others.
bool SetMetric(const std::string& name, double value, MetricPoint& point);

}  // namespace muster::exec
