#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/file/durable_file.h"
#include "common/file/read_file.h"
#include "common/file_error.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/outbox_format.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {
namespace {

constexpr uint64_t kReserveBytes = 16 << 10;

}  // namespace

struct OutboxWriter::State {
  std::string directory;
  uint64_t segment = 0;
  int fd = -1;
  uint64_t bytes = 0;      // whole records in the open segment
  uint64_t allocated = 0;  // of it, on the disk
  uint64_t sequence = 0;   // of the last record
  absl::Status broken;     // permanent: the state on disk is unknown

  ~State() {
    if (fd >= 0) close(fd);
  }

  std::string Path() const { return SegmentPath(directory, kOutboxPrefix, segment); }

  // The first or the newest one, at its end.
  absl::Status OpenSegment(uint64_t index) {
    const std::string path = SegmentPath(directory, kOutboxPrefix, index);
    const int opened = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
    if (opened < 0) return FileError(errno, absl::StrCat("cannot open ", path));
    fd = opened, segment = index;
    return SyncFolder(directory);
  }

  // Whether there is room for so many bytes more and, for records that must not be lost, for the reserve.
  bool MakeRoom(uint64_t more) {
    const uint64_t end = bytes + more + kReserveBytes;
    if (end <= allocated) return true;
    // Some file systems cannot allocate; there a full disk shows when a record is written.
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(end + kReserveBytes)) != 0) {
      return !IsFullDisk(errno);
    }
    allocated = end + kReserveBytes;
    return true;
  }

  // Finds the end of the complete records of a segment; sets `sequence` to the last one.
  absl::Status Scan(uint64_t index) {
    const std::string path = SegmentPath(directory, kOutboxPrefix, index);
    absl::StatusOr<std::string> content = ReadWhole(path);
    if (!content.ok()) return content.status();
    bytes = 0;
    while (true) {
      Record record;
      size_t size = 0;
      const Found found = DecodeRecord(std::string_view(*content).substr(bytes), record, size);
      if (found == Found::kDamaged) {
        return absl::DataLossError(absl::StrCat("outbox is damaged at ", path, ":", bytes,
                                                " (checksum); check the disk, then remove the rank's folder"));
      }
      if (found != Found::kRecord) return absl::OkStatus();
      bytes += size;
      sequence = record.sequence();
    }
  }

  absl::Status Sync() {
    if (fsync(fd) == 0) return absl::OkStatus();
    // The kernel may have dropped the pages that it failed to write, so a second fsync proves nothing.
    broken = absl::ErrnoToStatus(errno, absl::StrCat("cannot fsync ", Path()));
    return broken;
  }

  // Begins the next segment. It gets its name when it has its reserve: a full disk must not replace a segment that has
  // room for records that must not be lost by one that has none.
  absl::Status Roll() {
    const std::string path = SegmentPath(directory, kOutboxPrefix, segment + 1), unnamed = path + ".new";
    const int opened = open(unnamed.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_APPEND, 0600);
    if (opened < 0) return FileError(errno, absl::StrCat("cannot open ", unnamed));
    auto abandoned = absl::MakeCleanup([&] {
      close(opened);
      unlink(unnamed.c_str());
    });
    const bool reserved = fallocate(opened, FALLOC_FL_KEEP_SIZE, 0, 2 * kReserveBytes) == 0;
    if (!reserved && IsFullDisk(errno)) return FileError(errno, absl::StrCat("cannot reserve space for ", path));
    if (absl::Status status = Sync(); !status.ok()) return status;
    if (rename(unnamed.c_str(), path.c_str()) != 0) return FileError(errno, absl::StrCat("cannot make ", path));
    std::move(abandoned).Cancel();
    close(fd);
    fd = opened, bytes = 0, allocated = reserved ? 2 * kReserveBytes : 0;
    ++segment;
    absl::Status status = SyncFolder(directory);
    if (!status.ok()) broken = status;
    return status;
  }

  absl::Status Write(const std::string& encoded) {
    size_t written = 0;
    absl::Status status = WriteFully(fd, Path(), encoded, written);
    if (status.ok()) {
      bytes += encoded.size();
      return status;
    }
    if (written > 0 && ftruncate(fd, static_cast<off_t>(bytes)) != 0) broken = status;
    return status;
  }
};

OutboxWriter::OutboxWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
OutboxWriter::~OutboxWriter() = default;

absl::StatusOr<std::unique_ptr<OutboxWriter>> OutboxWriter::Open(const std::string& directory) {
  auto state = std::make_unique<State>();
  state->directory = directory;
  const std::vector<uint64_t> segments = ListSegments(directory, kOutboxPrefix);
  // The newest segment may hold no complete record yet; the one before it then gives the sequence.
  const size_t first = segments.size() < 2 ? 0 : segments.size() - 2;
  for (size_t i = first; i < segments.size(); ++i) {
    state->segment = segments[i];
    if (absl::Status status = state->Scan(segments[i]); !status.ok()) return status;
  }
  if (absl::Status status = state->OpenSegment(state->segment); !status.ok()) return status;
  if (ftruncate(state->fd, static_cast<off_t>(state->bytes)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot cut the torn tail of ", state->Path()));
  }
  state->MakeRoom(0);  // while there is room; a disk that is full already may have some later
  return std::unique_ptr<OutboxWriter>(new OutboxWriter(std::move(state)));
}

absl::StatusOr<uint64_t> OutboxWriter::Append(Record record, bool durable) {
  State& state = *state_;
  if (!state.broken.ok()) return state.broken;
  record.set_sequence(state.sequence + 1);
  const std::string encoded = EncodeRecord(record);
  if (encoded.size() > kOutboxSegmentBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a record of ", encoded.size(), " bytes; an outbox takes at most ", kOutboxSegmentBytes));
  }
  if (state.bytes > 0 && state.bytes + encoded.size() > kOutboxSegmentBytes) {
    absl::Status status = state.Roll();
    // A segment may be longer rather than that a record is lost, as far as it is read.
    const bool longer = durable && absl::IsResourceExhausted(status) && state.broken.ok() &&
                        state.bytes + encoded.size() <= kMaxOutboxSegmentBytes;
    if (!status.ok() && !longer) return status;
  }
  if (!state.MakeRoom(encoded.size()) && !durable) {
    return absl::ResourceExhaustedError(absl::StrCat("no space left on the device for ", state.Path()));
  }
  if (absl::Status status = state.Write(encoded); !status.ok()) return status;
  ++state.sequence;
  if (durable) {
    if (absl::Status status = state.Sync(); !status.ok()) return status;
  }
  return state.sequence;
}

}  // namespace muster::rundir
