#include "worker/agent/feed.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/proto_time.h"
#include "worker/agent/reconcile.h"
#include "worker/rundir/log.h"

namespace muster::agent {
namespace {

constexpr size_t kRecordsInAMessage = 256;
constexpr uint64_t kRecordsInFlight = 512;
// A record may have a MiB, and the coordinator takes messages of up to 8 MiB.
constexpr uint64_t kRecordBytesInAMessage = 1 << 20, kRecordBytesInFlight = 8 << 20;
constexpr size_t kChunkBytes = 64 * 1024;
constexpr uint64_t kLogBytesInFlight = 256 * 1024;
constexpr absl::Duration kPartialLineWait = absl::Seconds(1);

// A custom trainer may write a record that the coordinator refuses, which would end the whole node's stream.
absl::Status CheckForm(const Record& record) {
  if (record.body_case() == Record::BODY_NOT_SET) {
    return absl::DataLossError(absl::StrCat("record ", record.sequence(), " of the trainer is of no known kind"));
  }
  const size_t name = record.checkpoint().directory().size();
  if (record.has_checkpoint() && (name == 0 || name > rundir::kMaxCheckpointNameBytes)) {
    return absl::DataLossError(absl::StrCat("record ", record.sequence(), " names a checkpoint folder of ", name,
                                            " bytes; 1 to ", rundir::kMaxCheckpointNameBytes, " are allowed"));
  }
  return absl::OkStatus();
}

}  // namespace

Feed::Feed(const rundir::RankDir& dir) : directory_(dir.path()), key_(KeyOf(dir.rank())), reader_(dir.TrainerPath()) {}

void Feed::Reconnected() {
  sent_sequence_ = acknowledged_sequence_;
  in_flight_.clear();
  sent_offset_ = acknowledged_offset_;
  records_at_end_ = false;
  logs_at_end_ = false;
  partial_ = false;
}

void Feed::Collect(bool ended, Now now, std::vector<WorkerMessage>& messages) {
  CollectRecords(ended, messages);
  CollectLogs(ended, now, messages);
}

void Feed::Learn(const Record& record) {
  facts_.any = true;
  if (record.has_failed()) {
    facts_.failure = record.failed();
    return;
  }
  // Records before the first of these may have been acknowledged and dropped by an earlier daemon.
  facts_.running = true;
  if (record.has_metrics()) facts_.step = std::max(facts_.step, record.metrics().step());
  if (record.has_checkpoint()) facts_.step = std::max(facts_.step, record.checkpoint().step());
  if (record.has_running()) facts_.step = std::max(facts_.step, record.running().resumed_step());
  if (record.has_finished()) {
    facts_.finished = true;
    facts_.step = std::max(facts_.step, record.finished().step());
  }
}

void Feed::CollectRecords(bool ended, std::vector<WorkerMessage>& messages) {
  const auto add = [](uint64_t sum, const InFlight& message) { return sum + message.bytes; };
  uint64_t bytes = std::accumulate(in_flight_.begin(), in_flight_.end(), uint64_t{0}, add);
  while (facts_.damage.ok() && sent_sequence_ < acknowledged_sequence_ + kRecordsInFlight &&
         bytes < kRecordBytesInFlight) {
    absl::StatusOr<std::vector<Record>> read = reader_.Read(sent_sequence_, kRecordsInAMessage, kRecordBytesInAMessage);
    if (!read.ok()) {
      // Other errors may pass, so reading is retried; but the end of a rank must be reported eventually.
      if (ended || absl::IsDataLoss(read.status())) facts_.damage = read.status();
      break;
    }
    if (read->empty()) {
      records_at_end_ = true;
      return;
    }
    WorkerMessage message;
    *message.mutable_records()->mutable_key() = key_;
    for (Record& record : *read) {
      facts_.damage = CheckForm(record);
      if (!facts_.damage.ok()) break;
      Learn(record);
      sent_sequence_ = record.sequence();
      ever_sent_ = std::max(ever_sent_, sent_sequence_);
      // After a restart the coordinator may have newer records; they are read for their facts and not sent.
      if (sent_sequence_ <= acknowledged_sequence_) continue;
      *message.mutable_records()->add_records() = std::move(record);
    }
    if (message.records().records_size() == 0) continue;
    in_flight_.push_back({sent_sequence_, message.ByteSizeLong()});
    bytes += in_flight_.back().bytes;
    messages.push_back(std::move(message));
  }
  records_at_end_ = !facts_.damage.ok();
}

void Feed::CollectLogs(bool ended, Now now, std::vector<WorkerMessage>& messages) {
  logs_at_end_ = false;
  while (sent_offset_ < acknowledged_offset_ + kLogBytesInFlight) {
    absl::StatusOr<rundir::LogChunk> piece = rundir::ReadLog(directory_, sent_offset_, kChunkBytes);
    if (!piece.ok()) return;
    if (piece->bytes.empty()) {
      logs_at_end_ = ended;
      partial_ = false;
      return;
    }
    const bool waited = partial_ && now.steady - partial_since_ >= kPartialLineWait;
    const size_t length = ChunkLength(piece->bytes, kChunkBytes, ended || waited);
    if (length == 0) {
      if (!partial_) partial_since_ = now.steady;
      partial_ = true;
      return;
    }
    partial_ = false;
    piece->bytes.resize(length);
    rundir::ReplaceInvalidUtf8(piece->bytes);
    log_bytes_dropped_ += piece->offset - std::min(sent_offset_, piece->offset);
    sent_offset_ = piece->offset + length;
    WorkerMessage message;
    *message.mutable_logs()->mutable_key() = key_;
    LogChunk& chunk = *message.mutable_logs()->mutable_chunk();
    chunk.set_generation(key_.generation());
    chunk.set_rank(key_.rank());
    chunk.set_offset(piece->offset);
    chunk.set_text(std::move(piece->bytes));
    *chunk.mutable_time() = ToProto(now.wall);
    messages.push_back(std::move(message));
  }
}

uint64_t Feed::MayHaveSent(uint64_t sequence) {
  if (!std::exchange(asked_, true)) ever_sent_ = std::max(ever_sent_, sequence);
  return std::min(ever_sent_, sequence);
}

void Feed::AcknowledgeRecords(uint64_t sequence) {
  if (sequence <= acknowledged_sequence_) return;
  acknowledged_sequence_ = sequence;
  while (!in_flight_.empty() && in_flight_.front().last <= sequence) in_flight_.pop_front();
  // Only what was read. A segment that cannot be removed now is retried the next time.
  reader_.Drop(std::min(sequence, sent_sequence_)).IgnoreError();
}

void Feed::AcknowledgeLogs(uint64_t offset) {
  acknowledged_offset_ = std::max(acknowledged_offset_, offset);
  sent_offset_ = std::max(sent_offset_, offset);
}

size_t ChunkLength(const std::string& bytes, size_t chunk_bytes, bool all_of_it) {
  const size_t newline = bytes.rfind('\n');
  if (newline != std::string::npos) return newline + 1;
  if (!all_of_it && bytes.size() < chunk_bytes) return 0;
  // A character is at most 4 bytes; its first byte says how many.
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const auto c = static_cast<unsigned char>(bytes[bytes.size() - back]);
    if ((c & 0xC0) == 0x80) continue;
    const size_t length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC0 ? 2 : 1;
    if (length > back && bytes.size() > back) return bytes.size() - back;
    break;
  }
  return bytes.size();
}

}  // namespace muster::agent
