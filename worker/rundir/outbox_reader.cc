#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/str_cat.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/outbox_format.h"
#include "worker/rundir/segments.h"

namespace muster::rundir {

// A read cursor: the next record begins at `offset` of `segment`, and all records up to `sequence` were read.
struct OutboxReader::State {
  std::string directory;
  std::optional<uint64_t> segment;
  uint64_t offset = 0;
  uint64_t sequence = 0;

  std::string Path(uint64_t index) const { return SegmentPath(directory, kOutboxPrefix, index); }

  absl::Status Damage(const std::string& why) const {
    return absl::DataLossError(
        absl::StrCat("outbox is damaged at ", Path(*segment), ":", offset, " (", why, "); check the disk"));
  }

  void Rewind() {
    segment.reset();
    offset = 0;
    sequence = 0;
  }

  // Moves to the first segment of `all`, or to the one after the current. False: there is none.
  bool NextSegment(const std::vector<uint64_t>& all) {
    const auto next = segment.has_value() ? std::upper_bound(all.begin(), all.end(), *segment) : all.begin();
    if (next == all.end()) return false;
    segment = *next;
    offset = 0;
    return true;
  }

  // Reads records with a sequence above `after` from the current segment. OK at its end, too.
  absl::Status ReadSegment(uint64_t after, size_t limit, bool newest, uint64_t& bytes, std::vector<Record>& records) {
    absl::StatusOr<std::string> content = ReadTrainersFile(Path(*segment), offset, kMaxOutboxSegmentBytes);
    if (absl::IsNotFound(content.status())) return absl::OkStatus();  // dropped meanwhile
    if (!content.ok()) return content.status();
    if (content->empty() && offset == 0 && !newest) return Damage("no record, and others follow");
    std::string_view rest = *content;
    while (records.size() < limit && bytes > 0) {
      Record record;
      size_t size = 0;
      const Found found = DecodeRecord(rest, record, size);
      if (found == Found::kDamaged) return Damage("checksum");
      if (found == Found::kTorn && !newest) return Damage("a record is cut off, and others follow");
      if (found != Found::kRecord) return absl::OkStatus();
      // The first record read may have any sequence: older segments may have been dropped.
      if (sequence != 0 && record.sequence() != sequence + 1) {
        return Damage(absl::StrCat("record ", record.sequence(), " follows ", sequence));
      }
      sequence = record.sequence();
      offset += size;
      rest.remove_prefix(size);
      if (sequence <= after) continue;
      records.push_back(std::move(record));
      bytes -= std::min<uint64_t>(bytes, size);
    }
    return absl::OkStatus();
  }
};

OutboxReader::OutboxReader(std::string directory) : state_(std::make_unique<State>()) {
  state_->directory = std::move(directory);
}
OutboxReader::~OutboxReader() = default;

absl::StatusOr<std::vector<Record>> OutboxReader::Read(uint64_t after, size_t limit, uint64_t bytes) {
  State& state = *state_;
  if (after < state.sequence) state.Rewind();
  std::vector<Record> records;
  // List before reading: a segment that was not the newest at that time is complete.
  const std::vector<uint64_t> all = ListSegments(state.directory, kOutboxPrefix);
  if (!state.segment.has_value() && !state.NextSegment(all)) return records;
  while (records.size() < limit && bytes > 0) {
    const bool newest = all.empty() || all.back() <= *state.segment;
    absl::Status status = state.ReadSegment(after, limit, newest, bytes, records);
    // Return the good records before the damage; the next call returns the damage.
    if (!status.ok() && !records.empty()) return records;
    if (!status.ok()) return status;
    if (records.size() == limit || bytes == 0 || newest || !state.NextSegment(all)) break;
  }
  return records;
}

absl::Status OutboxReader::Drop(uint64_t sequence) {
  const std::vector<uint64_t> all = ListSegments(state_->directory, kOutboxPrefix);
  for (size_t i = 0; i + 1 < all.size(); ++i) {
    absl::StatusOr<std::string> content = ReadTrainersFile(state_->Path(all[i + 1]), 0, kMaxOutboxSegmentBytes);
    if (!content.ok()) return content.status();
    Record first;
    size_t size = 0;
    if (DecodeRecord(*content, first, size) != Found::kRecord || first.sequence() > sequence + 1) break;
    if (unlink(state_->Path(all[i]).c_str()) != 0 && errno != ENOENT) {
      return absl::ErrnoToStatus(errno, absl::StrCat("cannot remove ", state_->Path(all[i])));
    }
  }
  return absl::OkStatus();
}

}  // namespace muster::rundir
