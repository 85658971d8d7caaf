// TensorBoard's event files: records of an event each. Format: tensorflow/core/lib/io/record_writer.h: u64 length,
// masked CRC-32C of it, the event, masked CRC-32C of the event, little-endian. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "proto/job.pb.h"

namespace muster::metrics {

// A CRC of data that holds CRCs itself is weak, so stored ones are rotated by 15 bits and moved by a constant.
uint32_t MaskedCrc(std::string_view bytes);

// A record around `event`.
std::string EventRecord(std::string_view event);

// The first two records of a file whose first step is that of `point`: the version, and that a session starts, so that
// what earlier files say of this step and later ones is void.
std::string FileStart(const MetricPoint& point);

// What `point` measured, one record with a value for each tag: train/loss, train/gradient_norm, train/learning_rate,
// validation/loss, perf/tokens_per_second, perf/step_seconds, perf/peak_memory_bytes, perf/communication_seconds.
// Empty: it measured nothing.
std::string PointRecord(const MetricPoint& point);

// Whether the point of `step` is written: all of the first 100,000 steps, then every second up to 200,000, every fourth
// up to 400,000, and so on: a file grows with the logarithm of the steps.
bool IsWritten(uint64_t step);

}  // namespace muster::metrics
