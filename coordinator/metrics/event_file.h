// The events of Muster's own TensorBoard files, as records (common/event_record.h). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "proto/job.pb.h"

namespace muster::metrics {

// The first two records of a file whose first step is that of `point`: the format version, and a session start, which
// makes values of this step and later ones in earlier files void.
std::string FileStart(const MetricPoint& point);

// A record with the values of `point`, one for each tag: train/loss, train/gradient_norm, train/learning_rate,
// train/skipped_steps, train/loss_scale, validation/loss, validation/<metric of the task>, perf/samples_per_second,
// perf/tokens_per_second, perf/model_flops_per_second, perf/step_seconds, perf/peak_memory_bytes,
// perf/communication_seconds. Empty if `point` has no values.
std::string PointRecord(const MetricPoint& point);

// Whether the point of `step` is written: all of the first 100,000 steps, then every second up to 200,000, every fourth
// up to 400,000, and so on, so a file grows logarithmically with the steps.
bool IsWritten(uint64_t step);

}  // namespace muster::metrics
