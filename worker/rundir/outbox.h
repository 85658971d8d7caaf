// A trainer's records on their way to the coordinator: files that the trainer appends to and the worker reads, so that
// no daemon's absence or death loses one. Format of a segment: records, each as a little-endian uint32 length, a
// little-endian uint32 CRC-32C of the bytes, and the serialised Record. A torn last record is not there yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/records.pb.h"

namespace muster::rundir {

inline constexpr uint64_t kOutboxSegmentBytes = 1 << 20;

// The trainer's end. Not thread-safe.
class OutboxWriter {
 public:
  // Begins behind what is there (a trainer never opens its folder twice, but may).
  static absl::StatusOr<std::unique_ptr<OutboxWriter>> Open(const std::string& directory);
  ~OutboxWriter();

  // Numbers the record and appends it; `durable`: fsync before returning (checkpoints, the end).
  absl::StatusOr<uint64_t> Append(Record record, bool durable);

 private:
  struct State;
  explicit OutboxWriter(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The worker's end. Not thread-safe.
class OutboxReader {
 public:
  explicit OutboxReader(std::string directory);
  ~OutboxReader();

  // Records behind `after`, at most `limit`. DataLoss: a record in the middle is damaged; names file and offset.
  absl::StatusOr<std::vector<Record>> Read(uint64_t after, size_t limit);
  // Removes segments whose every record is at or before `sequence`, but never the newest one.
  absl::Status Drop(uint64_t sequence);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace muster::rundir
