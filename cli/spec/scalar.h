// The YAML 1.2 core schema (yaml.org/spec/1.2.2, chapter 10.3): what a plain scalar means. yaml-cpp 0.7 follows
// YAML 1.1 here, where `no` is false and `010` is 8.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster::cli {

enum class ScalarType { kNull, kBool, kInteger, kFloat, kString };

ScalarType CoreType(absl::string_view plain);

// Describes a value for messages: "the integer 12", "the string \"abc\"", "nothing". Cuts long text and escapes
// unprintable text.
std::string DescribeScalar(absl::string_view text, ScalarType type);

// REQUIRES: plain text whose CoreType is kInteger. OutOfRange.
absl::StatusOr<int64_t> ParseSigned(absl::string_view text);
absl::StatusOr<uint64_t> ParseUnsigned(absl::string_view text);
// REQUIRES: kInteger or kFloat. OutOfRange if a double cannot hold it; InvalidArgument for infinities and NaN.
absl::StatusOr<double> ParseDouble(absl::string_view text);

}  // namespace muster::cli
