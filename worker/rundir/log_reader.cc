#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "worker/rundir/log.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

// Length of the valid UTF-8 sequence at the start, or 0 (RFC 3629, table 3-7 of Unicode).
size_t SequenceLength(std::string_view s) {
  const auto at = [&s](size_t i) { return i < s.size() ? static_cast<unsigned char>(s[i]) : 0u; };
  const auto tail = [&at](size_t i) { return at(i) >= 0x80 && at(i) <= 0xBF; };
  const unsigned first = at(0);
  const unsigned second = at(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return tail(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
    return tail(1) && tail(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
    return tail(1) && tail(2) && tail(3) ? 4 : 0;
  }
  return 0;
}

// Appends bytes of one segment from `position`, up to `limit` in all.
absl::Status ReadSegment(const std::string& path, uint64_t position, size_t limit, std::string& bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", path));
  const auto closed = absl::MakeCleanup([fd] { close(fd); });
  while (bytes.size() < limit) {
    char buffer[16 * 1024];
    const size_t want = std::min(sizeof buffer, limit - bytes.size());
    const ssize_t n = pread(fd, buffer, want, static_cast<off_t>(position));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot read ", path));
    if (n == 0) break;
    bytes.append(buffer, static_cast<size_t>(n));
    position += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LogChunk> ReadLog(const std::string& directory, uint64_t offset, size_t limit) {
  LogChunk piece{offset, ""};
  for (const uint64_t index : ListSegments(directory, kLogPrefix)) {
    const uint64_t begin = index * kLogSegmentBytes;
    const uint64_t next = piece.offset + piece.bytes.size();
    if (begin + kLogSegmentBytes <= next) continue;
    if (begin > next) {
      if (!piece.bytes.empty()) break;  // the gap is between this piece and the next
      piece.offset = begin;
    }
    const uint64_t position = piece.offset + piece.bytes.size() - begin;
    const absl::Status status = ReadSegment(SegmentPath(directory, kLogPrefix, index), position, limit, piece.bytes);
    if (absl::IsNotFound(status)) continue;  // removed as too old since it was listed
    if (!status.ok()) return status;
    if (piece.bytes.size() >= limit) break;
  }
  if (piece.bytes.empty()) piece.offset = std::max(offset, std::min(piece.offset, LogEnd(directory)));
  return piece;
}

uint64_t LogEnd(const std::string& directory) {
  const std::vector<uint64_t> segments = ListSegments(directory, kLogPrefix);
  struct stat found {};
  if (segments.empty() || stat(SegmentPath(directory, kLogPrefix, segments.back()).c_str(), &found) != 0) return 0;
  return segments.back() * kLogSegmentBytes + static_cast<uint64_t>(found.st_size);
}

std::vector<std::string> LastLogLines(const std::string& directory, size_t count, size_t line_bytes) {
  const uint64_t want = 64 * 1024;
  const uint64_t end = LogEnd(directory);
  absl::StatusOr<LogChunk> tail = ReadLog(directory, end > want ? end - want : 0, want);
  return tail.ok() ? LastLines(std::move(tail->bytes), count, line_bytes) : std::vector<std::string>();
}

std::vector<std::string> LastLines(std::string text, size_t count, size_t line_bytes) {
  ReplaceInvalidUtf8(text);
  std::vector<std::string> lines = absl::StrSplit(text, absl::ByAnyChar("\n\r"), absl::SkipEmpty());
  if (lines.size() > count) lines.erase(lines.begin(), lines.end() - static_cast<ptrdiff_t>(count));
  for (std::string& line : lines) {
    if (line.size() <= line_bytes) continue;
    line.resize(line_bytes);
    ReplaceInvalidUtf8(line);
  }
  return lines;
}

void ReplaceInvalidUtf8(std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = SequenceLength(std::string_view(bytes).substr(i));
    if (length == 0) bytes[i] = '?';
    i += std::max<size_t>(length, 1);
  }
}

}  // namespace muster::rundir
