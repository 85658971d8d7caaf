// Sends one rank's records and output from its folder to the coordinator: within a window, again from the acknowledged
// position on a new stream, and removed from the folder once acknowledged.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
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

// What the records read so far say about the rank.
struct Facts {
  bool any = false;
  bool running = false;           // its first step has begun
  bool finished = false;          // all steps are done
  uint64_t step = 0;              // last finished
  std::optional<Failed> failure;  // the trainer's own report of its failure
  // Not OK: the outbox is damaged after the records read so far, or a record is malformed. No more records follow.
  absl::Status damage;
};

class Feed {
 public:
  explicit Feed(const rundir::RankDir& dir);

  // On a new stream: sends unacknowledged records and output again.
  void Reconnected();

  // Appends the messages that may be sent now. `ended`: the rank has exited, so no more data follows, and an unfinished
  // line is sent too.
  void Collect(bool ended, Now now, std::vector<WorkerMessage>& messages);

  // The newest record up to `sequence` that may have been sent, by this daemon or an earlier one: records that existed
  // at the first call count as sent.
  uint64_t MayHaveSent(uint64_t sequence);

  void AcknowledgeRecords(uint64_t sequence);
  void AcknowledgeLogs(uint64_t offset);

  // After a Collect with `ended`: the coordinator has everything that is readable.
  bool records_drained() const { return records_at_end_ && acknowledged_sequence_ >= sent_sequence_; }
  bool logs_drained() const { return logs_at_end_ && acknowledged_offset_ >= sent_offset_; }
  const Facts& facts() const { return facts_; }
  // Output that was removed from the folder before it could be sent.
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
  struct InFlight {
    uint64_t last = 0;  // sequence
    uint64_t bytes = 0;
  };
  std::deque<InFlight> in_flight_;  // messages with records that are not all acknowledged
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
