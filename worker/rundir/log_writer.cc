#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file_error.h"
#include "worker/rundir/log.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {}  // namespace

struct LogWriter::State {
  std::string directory;
  uint64_t segment = 0;
  uint64_t bytes = 0;  // in it
  uint64_t missing = 0;
  int fd = -1;

  ~State() {
    if (fd >= 0) close(fd);
  }

  absl::Status OpenSegment() {
    if (fd >= 0) close(fd);
    const std::string path = SegmentPath(directory, kLogPrefix, segment);
    fd = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) return FileError(errno, absl::StrCat("cannot open ", path));
    struct stat found {};
    if (fstat(fd, &found) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot look at ", path));
    bytes = static_cast<uint64_t>(found.st_size);
    return absl::OkStatus();
  }

  void RemoveOld() const {
    for (const uint64_t index : ListSegments(directory, kLogPrefix)) {
      if (index != 0 && index + kLogSegmentsKept <= segment) unlink(SegmentPath(directory, kLogPrefix, index).c_str());
    }
  }

  // `written` counts also when it fails.
  absl::Status Write(std::string_view text, size_t& written) {
    written = 0;
    while (written < text.size()) {
      if (fd < 0 || bytes >= kLogSegmentBytes) {
        if (fd >= 0) {
          close(fd);
          fd = -1;
          ++segment;
          RemoveOld();
        }
        if (absl::Status status = OpenSegment(); !status.ok()) return status;
        continue;
      }
      size_t n = 0;
      const absl::Status status = WriteFully(fd, SegmentPath(directory, kLogPrefix, segment),
                                             text.substr(written, kLogSegmentBytes - bytes), n);
      bytes += n;
      written += n;
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
};

LogWriter::LogWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
LogWriter::~LogWriter() = default;

absl::StatusOr<std::unique_ptr<LogWriter>> LogWriter::Open(const std::string& directory) {
  auto state = std::make_unique<State>();
  state->directory = directory;
  const std::vector<uint64_t> segments = ListSegments(directory, kLogPrefix);
  if (!segments.empty()) state->segment = segments.back();
  if (absl::Status status = state->OpenSegment(); !status.ok()) return status;
  return std::unique_ptr<LogWriter>(new LogWriter(std::move(state)));
}

absl::Status LogWriter::Append(std::string_view text) {
  State& state = *state_;
  size_t written = 0;
  if (state.missing > 0) {
    const std::string line =
        absl::StrCat("\n[", state.missing, " bytes of output are missing here: the disk was full]\n");
    const absl::Status status = state.Write(line, written);
    if (!status.ok()) {
      state.missing += text.size();
      return status;
    }
    state.missing = 0;
  }
  const absl::Status status = state.Write(text, written);
  state.missing += text.size() - written;
  return status;
}

}  // namespace muster::rundir
