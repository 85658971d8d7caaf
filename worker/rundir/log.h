// A rank's output, stdout and stderr together, in segments of 1 MiB, of which the first and the newest 64 are kept.
// Byte k of the output is byte k % 1 MiB of segment k / 1 MiB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace muster::rundir {

inline constexpr uint64_t kLogSegmentBytes = 1 << 20;
inline constexpr size_t kLogSegmentsKept = 64;  // besides the first

// Used by the shim. Not thread-safe.
class LogWriter {
 public:
  // Appends after existing segments.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Open(const std::string& directory);
  ~LogWriter();

  // Appends the text and removes old segments. ResourceExhausted and others: the text, or the rest of it, is dropped.
  // The writer stays usable: once a later text fits, a line before it says how many bytes are missing.
  absl::Status Append(std::string_view text);

 private:
  struct State;
  explicit LogWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct LogChunk {
  uint64_t offset = 0;  // of the first byte; larger than requested if that segment was removed
  std::string bytes;    // empty: no output there yet
};

// Used by the worker, also while the log is written. Reads from `offset` on, at most `limit` bytes.
absl::StatusOr<LogChunk> ReadLog(const std::string& directory, uint64_t offset, size_t limit);

// The current length of the output.
uint64_t LogEnd(const std::string& directory);

// The last lines of a text, oldest first; each is cut to `line_bytes` and valid UTF-8.
std::vector<std::string> LastLines(std::string text, size_t count, size_t line_bytes);
// The same for a log.
std::vector<std::string> LastLogLines(const std::string& directory, size_t count, size_t line_bytes);

// Replaces each byte of invalid UTF-8 by '?', which keeps lengths and positions.
void ReplaceInvalidUtf8(std::string& bytes);

}  // namespace muster::rundir
