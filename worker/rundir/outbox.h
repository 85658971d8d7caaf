// The queue of a trainer's records for the coordinator: files that the trainer appends to and the worker reads, so that
// no record is lost while a daemon is away. Format of a segment: records, each as a little-endian uint32 length, a
// little-endian uint32 CRC-32C of the bytes, and the serialized Record. A torn last record counts as not written yet.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/records.pb.h"

namespace muster::rundir {

// A record fits into a segment, and the next one follows then. Where no next segment can be created, because the disk
// is full, a segment takes durable records up to the maximum. Readers take no larger one.
inline constexpr uint64_t kOutboxSegmentBytes = 1 << 20;
inline constexpr uint64_t kMaxOutboxSegmentBytes = 2 * kOutboxSegmentBytes;

// A checkpoint's name in a record. Coordinators refuse a longer one, and with it the node's whole stream.
inline constexpr size_t kMaxCheckpointNameBytes = 256;

// Used by the trainer. Not thread-safe.
class OutboxWriter {
 public:
  // Appends after existing records.
  static absl::StatusOr<std::unique_ptr<OutboxWriter>> Open(const std::string& directory);
  ~OutboxWriter();

  // Assigns the next sequence number and appends the record; `durable`: fsync before returning (checkpoints, the end).
  // ResourceExhausted: the disk is full. Some KiB are kept for durable records from the opening on, so they may still
  // be appended then. InvalidArgument: a record over kOutboxSegmentBytes.
  absl::StatusOr<uint64_t> Append(Record record, bool durable);

 private:
  struct State;
  explicit OutboxWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Used by the worker. Not thread-safe.
class OutboxReader {
 public:
  explicit OutboxReader(std::string directory);
  ~OutboxReader();

  // Records with a sequence above `after`, at most `limit`, and none after they have `bytes` or more. DataLoss: a
  // record in the middle is damaged; names file and offset.
  absl::StatusOr<std::vector<Record>> Read(uint64_t after, size_t limit,
                                           uint64_t bytes = std::numeric_limits<uint64_t>::max());
  // Removes segments whose every record is at or before `sequence`, but never the newest one.
  absl::Status Drop(uint64_t sequence);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::rundir
