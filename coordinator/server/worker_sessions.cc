#include "coordinator/server/worker_sessions.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/version.h"
#include "coordinator/server/fatal.h"
#include "coordinator/server/shell.h"

namespace muster::server {
namespace {

// A session caches the progress of this many ranks; for more it reads the store again.
constexpr size_t kRememberedRanks = 65'536;

RankId RankOf(const RankKey& key) { return {JobId(key.job()), key.generation(), key.rank()}; }

void SetKey(const RankId& rank, RankKey& key) {
  key.set_job(rank.job.value());
  key.set_generation(rank.generation);
  key.set_rank(rank.rank);
}

CoordinatorMessage Message(const Ledger& ledger) {
  CoordinatorMessage message;
  message.set_term(ledger.term());
  return message;
}

void SendRecordsAck(const Ledger& ledger, const RankId& rank, uint64_t sequence, WorkerLink& link) {
  CoordinatorMessage message = Message(ledger);
  SetKey(rank, *message.mutable_records_ack()->mutable_key());
  message.mutable_records_ack()->set_sequence(sequence);
  link.Send(std::move(message));
}

void SendLogsAck(const Ledger& ledger, const RankId& rank, uint64_t offset, WorkerLink& link) {
  CoordinatorMessage message = Message(ledger);
  SetKey(rank, *message.mutable_logs_ack()->mutable_key());
  message.mutable_logs_ack()->set_offset(offset);
  link.Send(std::move(message));
}

// Removes the first `bytes` bytes, and the rest of a character that they split.
void CutFront(uint64_t bytes, LogChunk& chunk) {
  const std::string& text = chunk.text();
  while (bytes < text.size() && (static_cast<unsigned char>(text[bytes]) & 0xc0) == 0x80) ++bytes;
  chunk.set_offset(chunk.offset() + bytes);
  chunk.mutable_text()->erase(0, bytes);
}

}  // namespace

WorkerSessions::Session* WorkerSessions::SessionOf(const WorkerLink* link) {
  const auto node = nodes_.find(link);
  return node == nodes_.end() ? nullptr : &sessions_.at(node->second);
}

void WorkerSessions::Receive(Turn& turn, const std::shared_ptr<WorkerLink>& link, const WorkerMessage& message) {
  if (closed_) {
    link->Close(absl::UnavailableError("the coordinator is shutting down; try again in a moment"));
    return;
  }
  if (message.has_hello()) return Connect(turn, link, message.hello());
  Session* session = SessionOf(link.get());
  if (session == nullptr) return;  // replaced and closed
  liveness_.Contact(session->node, turn.now().steady);
  if (message.has_observed()) {
    turn.Handle(core::NodeObserved{session->node, session->incarnation, message.observed()});
  } else if (message.has_records()) {
    TakeRecords(turn, *session, message.records());
  } else if (message.has_logs()) {
    TakeLog(turn, *session, message.logs());
  } else if (message.has_heartbeat()) {
    CoordinatorMessage echo = Message(*ledger_);
    echo.mutable_heartbeat()->set_number(message.heartbeat().number());
    link->Send(std::move(echo));
    if (message.heartbeat().has_use()) uses_.Add(session->node, message.heartbeat().use(), turn.now());
  }
}

void WorkerSessions::Connect(Turn& turn, const std::shared_ptr<WorkerLink>& link, const Hello& hello) {
  if (!hello.store_id().empty() && !ledger_->store_id().empty() && hello.store_id() != ledger_->store_id()) {
    const absl::Status other = absl::AbortedError(
        absl::StrCat("this worker has ranks of the store ", hello.store_id(), ", and this coordinator has the store ",
                     ledger_->store_id(), ": was it started with another --state-dir?"));
    LogWarn("worker of another store refused", {{"node", hello.node().id()}, {"error", other}});
    return link->Close(other);
  }
  core::NodeConnected connected{hello.node()};
  if (hello.has_preflight()) connected.preflight = hello.preflight();
  if (hello.has_time()) connected.time = FromProto(hello.time());
  for (const auto& [job, generation] : hello.generations()) connected.generations.emplace(JobId(job), generation);
  const core::Outcome& outcome = turn.Handle(std::move(connected));
  if (!outcome.status.ok()) {
    LogWarn("worker refused",
            {{"node", hello.node().id()}, {"hostname", hello.node().hostname()}, {"error", outcome.status}});
    turn.AfterCommit([link, status = outcome.status] { link->Close(status); });
    return;
  }
  const NodeId node(hello.node().id());
  const auto previous = sessions_.find(node);
  if (previous != sessions_.end()) {
    nodes_.erase(previous->second.link.get());
    turn.AfterCommit([old = previous->second.link] {
      old->Close(absl::CancelledError("replaced by a newer stream of the same node"));
    });
    sessions_.erase(previous);
  }
  nodes_[link.get()] = node;
  sessions_[node] = Session{link, node, Incarnation(hello.node().incarnation()), {}};
  // The transport has checked that there is one.
  sessions_[node].protocol = CommonProtocol({}, {hello.protocol(), hello.oldest_protocol()}).value_or(hello.protocol());
  if (hello.term() >= ledger_->term()) {
    LogWarn("a worker has seen a later term: the store is an older copy, restored from a backup",
            {{"node", node}, {"term", hello.term()}, {"own_term", ledger_->term()}});
    ledger_->RaiseTerm(hello.term() + 1);
  }
  liveness_.Contact(node, turn.now().steady);
  turn.AfterCommit([this, &core = turn.core(), node, link] {
    if (SessionOf(link.get()) != nullptr) Welcome(core, node);
  });
}

void WorkerSessions::Welcome(const core::Core& core, const NodeId& node) {
  CoordinatorMessage message = Message(*ledger_);
  muster::Welcome& welcome = *message.mutable_welcome();
  welcome.set_coordinator_version(kVersion);
  *welcome.mutable_orphan_grace() = ToProto(options_.orphan_grace);
  *welcome.mutable_detection() = ToProto(options_.detection);
  welcome.set_store_id(ledger_->store_id());
  welcome.set_protocol(sessions_.at(node).protocol);
  sessions_.at(node).link->Send(std::move(message));
  SendDesired(core, node);
}

void WorkerSessions::SendDesired(const core::Core& core, const NodeId& node) {
  const auto session = sessions_.find(node);
  if (session == sessions_.end() || !core.HasReported(node)) return;
  CoordinatorMessage message = Message(*ledger_);
  *message.mutable_desired() = core.DesiredFor(node);
  session->second.link->Send(std::move(message));
}

WorkerSessions::Acknowledgements& WorkerSessions::AcknowledgementsOf(Session& session, const RankId& rank) {
  const auto found = session.ranks.find(rank);
  if (found != session.ranks.end()) return found->second;
  // Input that an earlier stream of this node has staged is not in the store yet.
  if (staged_by_.contains(rank) || session.ranks.size() >= kRememberedRanks) {
    if (absl::Status status = ledger_->Flush(); !status.ok()) EndProcess("storing metrics and logs", status);
    if (session.ranks.size() >= kRememberedRanks) session.ranks.clear();
  }
  const absl::StatusOr<store::Acknowledged> stored = ledger_->GetAcknowledged(rank);
  if (!stored.ok()) EndProcess("reading what ranks have sent", stored.status());
  return session.ranks.emplace(rank, Acknowledgements{*stored, *stored}).first->second;
}

void WorkerSessions::TakeRecords(Turn& turn, Session& session, const Records& records) {
  const RankId rank = RankOf(records.key());
  if (records.records().empty()) return;
  const uint64_t last = records.records(records.records_size() - 1).sequence();
  const core::Core::RankStatus status = turn.core().StatusOf(rank, session.node);
  if (status == core::Core::RankStatus::kNone) {  // the rank was deleted or is not this node's: drop the records
    SendRecordsAck(*ledger_, rank, last, *session.link);
    return;
  }
  Acknowledgements& progress = AcknowledgementsOf(session, rank);
  if (last <= progress.received.record_sequence) {  // a duplicate; staged records are acknowledged when they are stored
    if (last <= progress.stored.record_sequence) {
      SendRecordsAck(*ledger_, rank, progress.stored.record_sequence, *session.link);
    }
    return;
  }
  // Metrics of an older generation are stale: the current one repeats their steps.
  const bool current = status == core::Core::RankStatus::kCurrent;
  bool after_state_change = false;  // items after a record that changes state are stored after its commit
  std::vector<MetricPoint> later;
  for (const Record& record : records.records()) {
    if (record.sequence() <= progress.received.record_sequence) continue;
    if (record.has_metrics()) {
      if (current && after_state_change) later.push_back(record.metrics());
      if (current && !after_state_change) ledger_->Stage(rank.job, record.metrics());
    } else if (record.has_trace()) {
      turn.AfterCommit([rank, trace = record.trace(), &traces = turn.traces()] { traces.Add(rank, trace); });
    } else {
      if (!after_state_change) ledger_->Stage(rank, {progress.received.record_sequence, 0});
      after_state_change = true;
      // A refused record, as of a stale generation, is acknowledged too.
      turn.Handle(core::RankRecord{rank, record});
    }
    progress.received.record_sequence = record.sequence();
  }
  staged_by_[rank] = session.node;
  if (!after_state_change) {
    ledger_->Stage(rank, {last, 0});
    return;
  }
  turn.AfterCommit([this, rank, node = session.node, last, later = std::move(later), &core = turn.core()]() mutable {
    // Another event of the turn may have started a new generation, whose points may be stored already.
    if (core.StatusOf(rank, node) != core::Core::RankStatus::kCurrent) later.clear();
    for (MetricPoint& point : later) ledger_->Stage(rank.job, std::move(point));
    ledger_->Stage(rank, {last, 0});
  });
}

void WorkerSessions::TakeLog(Turn& turn, Session& session, const Logs& logs) {
  const RankId rank = RankOf(logs.key());
  const uint64_t end = logs.chunk().offset() + logs.chunk().text().size();
  if (turn.core().StatusOf(rank, session.node) == core::Core::RankStatus::kNone) {
    SendLogsAck(*ledger_, rank, end, *session.link);
    return;
  }
  Acknowledgements& progress = AcknowledgementsOf(session, rank);
  if (end <= progress.received.log_offset) {
    if (end <= progress.stored.log_offset) SendLogsAck(*ledger_, rank, progress.stored.log_offset, *session.link);
    return;
  }
  LogChunk chunk = logs.chunk();
  chunk.set_generation(rank.generation);
  chunk.set_rank(rank.rank);
  if (chunk.offset() < progress.received.log_offset) CutFront(progress.received.log_offset - chunk.offset(), chunk);
  progress.received.log_offset = end;
  staged_by_[rank] = session.node;
  if (!chunk.text().empty()) ledger_->Stage(rank.job, std::move(chunk));
  ledger_->Stage(rank, {0, end});
}

void WorkerSessions::Acknowledge(const StoredInput& stored) {
  for (const auto& [rank, input] : stored) {
    const auto staged = staged_by_.find(rank);
    if (staged == staged_by_.end()) continue;
    const auto session = sessions_.find(staged->second);
    if (session != sessions_.end()) {
      const auto progress = session->second.ranks.find(rank);
      if (progress != session->second.ranks.end()) {
        store::Acknowledged& known = progress->second.stored;
        if (input.record_sequence > known.record_sequence) {
          SendRecordsAck(*ledger_, rank, input.record_sequence, *session->second.link);
          known.record_sequence = input.record_sequence;
        }
        if (input.log_offset > known.log_offset) {
          SendLogsAck(*ledger_, rank, input.log_offset, *session->second.link);
          known.log_offset = input.log_offset;
        }
      }
    }
  }
  if (ledger_->staged() == 0) staged_by_.clear();
}

void WorkerSessions::Drop(Turn& turn, std::map<NodeId, Session>::iterator session) {
  turn.Handle(core::NodeDisconnected{session->second.node, session->second.incarnation});
  nodes_.erase(session->second.link.get());
  liveness_.Forget(session->first);
  uses_.Gone(session->first);
  sessions_.erase(session);
}

void WorkerSessions::Gone(Turn& turn, const WorkerLink* link) {
  const auto node = nodes_.find(link);
  if (closed_ || node == nodes_.end()) return;
  LogInfo("worker stream ended", {{"node", node->second}});
  Drop(turn, sessions_.find(node->second));
}

void WorkerSessions::CloseStream(const core::CloseStream& close) {
  const auto session = sessions_.find(close.node);
  if (session == sessions_.end() || session->second.incarnation != close.incarnation) return;
  session->second.link->Close(absl::CancelledError(close.why));
  nodes_.erase(session->second.link.get());
  liveness_.Forget(session->first);
  sessions_.erase(session);
}

void WorkerSessions::CloseNode(Turn& turn, const NodeId& node, const absl::Status& why) {
  const auto session = sessions_.find(node);
  if (session == sessions_.end()) return;
  turn.AfterCommit([link = session->second.link, why] { link->Close(why); });
  Drop(turn, session);
}

void WorkerSessions::CheckLiveness(Turn& turn) {
  for (const Liveness::Silent& silent : liveness_.Check(turn.now().steady)) {
    const auto session = sessions_.find(silent.node);
    const std::string why =
        absl::StrCat("no message from worker ", silent.node.value(), " for ", absl::FormatDuration(silent.time));
    LogWarn("no message from the worker; closing its stream", {{"node", silent.node}, {"silence", silent.time}});
    turn.AfterCommit([link = session->second.link, why] { link->Close(absl::UnavailableError(why)); });
    Drop(turn, session);
  }
}

void WorkerSessions::CloseAll(const absl::Status& why) {
  closed_ = true;
  for (const auto& [node, session] : sessions_) {
    session.link->Close(why);
    liveness_.Forget(node);
  }
  sessions_.clear();
  nodes_.clear();
}

}  // namespace muster::server
