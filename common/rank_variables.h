// Which environment variables a job or a node may set for a rank. A rank otherwise starts with a fixed environment, so
// that its results do not depend on the shell that the worker was started from. Pure.
//
//   Status status = CheckRankVariable("NCCL_DEBUG", "INFO", VariableSource::kJob);
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

inline constexpr int kMaxRankVariables = 64;
inline constexpr size_t kMaxVariableName = 128;
inline constexpr size_t kMaxVariableValue = 512;
inline constexpr size_t kMaxProgramValue = 4096;

enum class VariableSource {
  kJob,   // `env` of the spec: equal on all nodes of the job
  kNode,  // `--env` of the worker, set by whoever administers the node
};

// "NCCL_*, FI_*, ...": what CheckRankVariable accepts, for messages.
std::string AllowedRankVariables();

// InvalidArgument: `source` may not set `name`. The message says why and what is allowed.
absl::Status CheckRankVariableName(absl::string_view name, VariableSource source);
// InvalidArgument: `value` is empty, longer than kMaxVariableValue, or not printable ASCII.
absl::Status CheckRankVariableValue(absl::string_view value);

// For the program of an exec job, which may have any variable except those that Muster sets for it (RANK, MASTER_ADDR,
// MUSTER_*, TORCHELASTIC_*, ...). InvalidArgument: as above.
absl::Status CheckProgramVariableName(absl::string_view name);
// InvalidArgument: `value` is longer than kMaxProgramValue or holds a zero byte. It may be empty.
absl::Status CheckProgramVariableValue(absl::string_view value);

// "NAME=VALUE" of a node's flag. Errors: as of both checks, with the name.
absl::StatusOr<std::pair<std::string, std::string>> ParseNodeVariable(absl::string_view text);

}  // namespace muster
