// One rank's records and output on their way from its folder to the coordinator: sent within a window, sent again from
// the acknowledged position on a new stream, removed from the folder once acknowledged.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "proto/records.pb.h"
#include "proto/worker.pb.h"
#include "worker/rundir/outbox.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {

// What the records that went by say about the rank.
struct Facts {
  bool any = false;
  bool running = false;           // it has begun its first step
  bool finished = false;          // all steps are done
  uint64_t step = 0;              // last finished
  std::optional<Failed> failure;  // what the trainer itself said of its end
  // Not OK: the outbox is damaged behind the records that went by, or a record is malformed. Nothing more will come.
  absl::Status damage;
};

class Feed {
 public:
  explicit Feed(const rundir::RankDir& dir);

  // A new stream: what was sent and not acknowledged is sent again.
  void Reconnected();

  // Appends what may be sent now. `ended`: the rank is gone, so that what is there is all there will be, and an
  // unfinished line is sent too.
  void Collect(bool ended, Now now, std::vector<WorkerMessage>& messages);

  // The newest record up to `sequence` that was ever sent, by this daemon or, for all it knows, by an earlier one: what
  // was there when it was first asked counts as sent.
  uint64_t MayHaveSent(uint64_t sequence);

  void AcknowledgeRecords(uint64_t sequence);
  void AcknowledgeLogs(uint64_t offset);

  // After a Collect with `ended`: the coordinator has everything that is readable.
  bool records_drained() const { return records_at_end_ && acknowledged_sequence_ >= sent_sequence_; }
  bool logs_drained() const { return logs_at_end_ && acknowledged_offset_ >= sent_offset_; }
  const Facts& facts() const { return facts_; }
  // Of the output, gone from the folder before it could be sent.
  uint64_t log_bytes_dropped() const { return log_bytes_dropped_; }

 private:
  void CollectRecords(bool ended, std::vector<WorkerMessage>& messages);
  void CollectLogs(bool ended, Now now, std::vector<WorkerMessage>& messages);
  void Learn(const Record& record);

  const std::string directory_;
  const RankKey key_;
  rundir::OutboxReader reader_;
  Facts facts_;

  uint64_t sent_sequence_ = 0;  // or read, when it need not be sent
  uint64_t ever_sent_ = 0;
  bool asked_ = false;
  uint64_t acknowledged_sequence_ = 0;
  bool records_at_end_ = false;

  uint64_t sent_offset_ = 0;
  uint64_t acknowledged_offset_ = 0;
  bool logs_at_end_ = false;
  uint64_t log_bytes_dropped_ = 0;
  SteadyTime partial_since_;  // of the unfinished line that begins at sent_offset_
  bool partial_ = false;
};

// How much of `bytes` to send now: up to the last line's end; or, when there is none and `all_of_it` or the chunk is
// full, up to the last whole character (all of it, if it is not UTF-8).
size_t ChunkLength(const std::string& bytes, size_t chunk_bytes, bool all_of_it);

}  // namespace muster::agent
