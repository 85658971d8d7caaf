// A rank's output, stdout and stderr together, as bytes with positions: segments of 1 MiB, of which the first and the
// newest 64 are kept. Byte k of the whole output is byte k % 1 MiB of segment k / 1 MiB; nothing else numbers it.
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

// The shim's end. Not thread-safe.
class LogWriter {
 public:
  // Begins behind what is there.
  static absl::StatusOr<std::unique_ptr<LogWriter>> Open(const std::string& directory);
  ~LogWriter();

  // Appends and removes what is too old. ResourceExhausted and others: the text, or its rest, is not kept. The writer
  // goes on: the next text may fit again, and then a line says how many bytes are missing before it.
  absl::Status Append(std::string_view text);

 private:
  struct State;
  explicit LogWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

struct LogChunk {
  uint64_t offset = 0;  // of the first byte; higher than asked for when what was there is no longer kept
  std::string bytes;    // empty: nothing there yet
};

// The worker's end; also for a log that is being written. Bytes behind `offset`, at most `limit`.
absl::StatusOr<LogChunk> ReadLog(const std::string& directory, uint64_t offset, size_t limit);

// Where the output ends now.
uint64_t LogEnd(const std::string& directory);

// Of a text: its last lines, oldest first; each cut to `line_bytes`, and valid UTF-8.
std::vector<std::string> LastLines(std::string text, size_t count, size_t line_bytes);
// The same of what is kept of a log.
std::vector<std::string> LastLogLines(const std::string& directory, size_t count, size_t line_bytes);

// Each byte that is no part of valid UTF-8 becomes '?', so that lengths and positions stay.
void ReplaceInvalidUtf8(std::string& bytes);

}  // namespace muster::rundir
