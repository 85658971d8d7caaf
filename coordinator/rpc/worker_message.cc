#include "coordinator/rpc/worker_message.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/utf8.h"

namespace muster::rpc {
namespace {

constexpr size_t kMaxIdBytes = 128;
constexpr int kMaxGenerations = 10'000;
constexpr uint64_t kMaxGeneration = 1'000'000'000;  // a key has ten digits for it
constexpr uint64_t kMaxTerm = 1'000'000'000'000;    // a worker must not use up all terms
constexpr int kMaxSlots = 1024, kMaxChecks = 100, kMaxDevices = 64;
constexpr int kMaxLastLines = 20;
constexpr size_t kMaxLineBytes = 1024;
constexpr size_t kMaxLinesBytes = 4096;  // one row holds the exits of all ranks of a generation
constexpr size_t kMaxMessageBytes = 1024;
constexpr size_t kMaxMetricName = 64;        // as muster-exec takes them
constexpr int kMaxMetrics = 64;              // of a point
constexpr size_t kMaxLogBytes = 256 * 1024;  // the contract says 64 KiB; replaced bytes may make it longer

absl::Status Malformed(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message of a worker: ", why));
}

absl::Status CheckKey(const RankKey& key) {
  if (key.job().empty() || key.job().size() > kMaxIdBytes) return Malformed("a rank key without a job");
  if (key.generation() == 0) return Malformed("a rank key without a generation");
  return absl::OkStatus();
}

absl::Status CheckPreflight(Preflight& preflight) {
  if (preflight.checks_size() > kMaxChecks) return Malformed("a preflight of more than 100 checks");
  for (PreflightCheck& check : *preflight.mutable_checks()) {
    ShortenUtf8(kMaxIdBytes, *check.mutable_name());
    ShortenUtf8(kMaxIdBytes * 4, *check.mutable_problem());
    ShortenUtf8(kMaxIdBytes * 2, *check.mutable_result());
  }
  return absl::OkStatus();
}

absl::Status CheckHello(Hello& hello) {
  if (absl::Status status = CheckVersion({hello.protocol(), hello.oldest_protocol()}, hello.node().version());
      !status.ok())
    return status;
  const Node& node = hello.node();
  for (const std::string* id : {&node.id(), &node.incarnation(), &node.boot_id()}) {
    if (id->empty() || id->size() > kMaxIdBytes) {
      return Malformed("a Hello needs id, incarnation and boot_id of 1 to 128 characters");
    }
  }
  if (node.hostname().size() > kMaxIdBytes * 2 || node.version().size() > kMaxIdBytes) return Malformed("a long name");
  for (const std::string* text : {&node.cpu().model(), &node.cpu().instruction_set(), &node.cpu().limited_by()}) {
    if (text->size() > kMaxIdBytes) return Malformed("a long name");
  }
  if (hello.term() > kMaxTerm) return Malformed("a term beyond 1,000,000,000,000");
  if (hello.store_id().size() > kMaxIdBytes) return Malformed("a long store id");
  if (hello.generations_size() > kMaxGenerations) return Malformed("generations of more than 10,000 jobs");
  for (const auto& [job, generation] : hello.generations()) {
    if (job.empty() || job.size() > kMaxIdBytes) return Malformed("a generation of no job");
    if (generation > kMaxGeneration) return Malformed("a generation beyond 1,000,000,000");
  }
  if (hello.has_preflight()) {
    if (absl::Status status = CheckPreflight(*hello.mutable_preflight()); !status.ok()) return status;
  }
  hello.mutable_node()->clear_use();
  if (node.slots_size() > kMaxSlots) return Malformed("more than 1024 slots");
  for (const Slot& slot : node.slots()) {
    if (slot.device_uuid().size() > kMaxIdBytes || slot.model().size() > kMaxIdBytes) return Malformed("a long name");
  }
  return absl::OkStatus();
}

// Keeps the newest lines.
void ShortenExit(RankExit& exit) {
  ShortenUtf8(kMaxMessageBytes, *exit.mutable_message());
  int kept = 0;
  size_t bytes = 0;
  for (; kept < std::min(exit.last_lines_size(), kMaxLastLines); ++kept) {
    std::string& line = *exit.mutable_last_lines(exit.last_lines_size() - 1 - kept);
    ShortenUtf8(kMaxLineBytes, line);
    bytes += line.size();
    if (bytes > kMaxLinesBytes) break;
  }
  exit.mutable_last_lines()->DeleteSubrange(0, exit.last_lines_size() - kept);
}

absl::Status CheckStuck(StuckRanks& stuck) {
  if (stuck.ranks_size() > kMaxSlots) return Malformed("more than 1024 stuck ranks");
  for (StuckRank& rank : *stuck.mutable_ranks()) {
    if (absl::Status status = CheckKey(rank.key()); !status.ok()) return status;
    if (rank.slots_size() > kMaxSlots) return Malformed("a stuck rank with more than 1024 slots");
    ShortenUtf8(kMaxIdBytes * 2, *rank.mutable_processes());
  }
  return absl::OkStatus();
}

absl::Status CheckObserved(Observed& observed) {
  for (ObservedRank& rank : *observed.mutable_ranks()) {
    if (absl::Status status = CheckKey(rank.key()); !status.ok()) return status;
    if (rank.has_exit()) ShortenExit(*rank.mutable_exit());
  }
  if (observed.has_preflight()) {
    if (absl::Status status = CheckPreflight(*observed.mutable_preflight()); !status.ok()) return status;
  }
  return observed.has_stuck() ? CheckStuck(*observed.mutable_stuck()) : absl::OkStatus();
}

absl::Status CheckUse(const NodeUse& use) {
  if (use.devices_size() > kMaxDevices) return Malformed("the use of more than 64 GPUs");
  bool sane = std::isfinite(use.busy_cores()) && use.busy_cores() >= 0;
  for (const DeviceUse& device : use.devices()) sane &= device.busy() >= 0 && device.busy() <= 1;
  return sane ? absl::OkStatus() : Malformed("busy must be 0 to 1, and busy_cores finite and not negative");
}

// A program may write the records of its rank itself. Its metrics are dropped rather than refused, which would end the
// stream of the whole node.
void DropMetrics(MetricPoint& point) {
  point.DiscardUnknownFields();
  for (auto* metrics : {point.mutable_reported(), point.mutable_validation()}) {
    const auto is_long = [](const NamedMetric& metric) { return metric.name().size() > kMaxMetricName; };
    metrics->erase(std::remove_if(metrics->begin(), metrics->end(), is_long), metrics->end());
    if (metrics->size() > kMaxMetrics) metrics->DeleteSubrange(kMaxMetrics, metrics->size() - kMaxMetrics);
  }
  if (!point.has_collective()) return;
  CollectiveTime& collective = *point.mutable_collective();
  for (std::string* name : {collective.mutable_type(), collective.mutable_redop()}) {
    if (name->size() > kMaxMetricName) name->clear();
  }
}

absl::Status CheckRecords(Records& records) {
  if (absl::Status status = CheckKey(records.key()); !status.ok()) return status;
  uint64_t last = 0;
  for (Record& record : *records.mutable_records()) {
    if (record.sequence() <= last) return Malformed("records whose sequence does not rise from 1");
    last = record.sequence();
    if (record.body_case() == Record::BODY_NOT_SET) return Malformed("an empty record");
    if (record.has_metrics()) DropMetrics(*record.mutable_metrics());
    if (record.has_checkpoint() &&
        (record.checkpoint().directory().empty() || record.checkpoint().directory().size() > kMaxIdBytes * 2)) {
      return Malformed("a checkpoint whose directory has no name, or a very long one");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckWorkerMessage(bool first, WorkerMessage& message) {
  if (first != message.has_hello()) {
    return Malformed(first ? "the first message of a stream is not a Hello" : "a second Hello");
  }
  switch (message.body_case()) {
    case WorkerMessage::kHello:
      return CheckHello(*message.mutable_hello());
    case WorkerMessage::kObserved:
      return CheckObserved(*message.mutable_observed());
    case WorkerMessage::kRecords:
      return CheckRecords(*message.mutable_records());
    case WorkerMessage::kLogs:
      if (message.logs().chunk().text().size() > kMaxLogBytes) return Malformed("a log chunk over 256 KiB");
      return CheckKey(message.logs().key());
    case WorkerMessage::kHeartbeat:
      return CheckUse(message.heartbeat().use());
    case WorkerMessage::BODY_NOT_SET:
      break;
  }
  return Malformed("it is empty");
}

}  // namespace muster::rpc
