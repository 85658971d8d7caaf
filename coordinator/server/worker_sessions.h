// The worker daemons' streams: their messages become events and history, and what the coordinator wants of them goes
// back. Semantics: Workers.Connect in proto/workers_service.proto.
//
// Not thread-safe: the loop owns it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "common/ids.h"
#include "coordinator/core/core.h"
#include "coordinator/server/ledger.h"
#include "coordinator/store/history.h"
#include "proto/worker.pb.h"

namespace muster::server {

class Turn;

// The transport of one stream. Called on the loop's thread; must not block. Only the newest of messages that replace
// each other (Desired, acknowledgements of a rank, heartbeats) need to be sent.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual void Send(CoordinatorMessage message) = 0;
  // The last call.
  virtual void Close(const absl::Status& status) = 0;
};

class WorkerSessions {
 public:
  struct Options {
    absl::Duration detection = absl::Seconds(10);     // of silence, until a worker counts as disconnected
    absl::Duration orphan_grace = absl::Minutes(30);  // goes to the workers
  };

  WorkerSessions(const Options& options, Ledger* ledger) : options_(options), ledger_(ledger) {}

  // A message of a stream, checked for its form by the transport; the first one is a Hello. One message of a stream at
  // a time: the next one may come after the turn's commit.
  void Receive(Turn& turn, const std::shared_ptr<WorkerLink>& link, const WorkerMessage& message);
  // The stream broke or was closed.
  void Gone(Turn& turn, const WorkerLink* link);

  void SendDesired(const core::Core& core, const NodeId& node);
  void CloseStream(const core::CloseStream& close);
  // Whatever its incarnation: the node counts as disconnected.
  void CloseNode(Turn& turn, const NodeId& node, const absl::Status& why);
  void Acknowledge(const StoredInput& stored);

  // Disconnects who was silent for too long.
  void CheckLiveness(Turn& turn);
  // Closes all streams; what they say later is ignored, so that their nodes do not count as away.
  void CloseAll(const absl::Status& why);

 private:
  // Of one rank: up to here received (not to be taken again), and stored.
  struct Acknowledgements {
    store::Acknowledged received;
    store::Acknowledged stored;
  };
  struct Session {
    std::shared_ptr<WorkerLink> link;
    NodeId node;
    Incarnation incarnation;
    SteadyTime heard;
    std::map<RankId, Acknowledgements> ranks;
  };

  void Connect(Turn& turn, const std::shared_ptr<WorkerLink>& link, const Hello& hello);
  void TakeRecords(Turn& turn, Session& session, const Records& records);
  void TakeLog(Turn& turn, Session& session, const Logs& logs);
  Acknowledgements& AcknowledgementsOf(Session& session, const RankId& rank);
  void Drop(Turn& turn, std::map<NodeId, Session>::iterator session);
  Session* SessionOf(const WorkerLink* link);
  void Welcome(const core::Core& core, const NodeId& node);

  const Options options_;
  Ledger* const ledger_;
  std::map<NodeId, Session> sessions_;
  std::map<const WorkerLink*, NodeId> nodes_;  // of the sessions' links
  std::map<RankId, NodeId> staged_by_;         // whom to tell when a rank's input is stored
  std::optional<SteadyTime> last_check_;
  bool closed_ = false;
};

}  // namespace muster::server
