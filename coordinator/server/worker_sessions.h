// The worker daemons' streams: turns their messages into events and history, and sends them their desired state.
// Semantics: Workers.Connect in proto/workers_service.proto.
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
#include "coordinator/server/liveness.h"
#include "coordinator/server/node_uses.h"
#include "coordinator/store/history.h"
#include "proto/worker.pb.h"

namespace muster::server {

class Turn;

// The transport of one stream. Called on the loop's thread; must not block. Of messages that replace each other
// (Desired, acknowledgements of a rank, heartbeats) only the newest needs to be sent.
class WorkerLink {
 public:
  virtual ~WorkerLink() = default;
  virtual void Send(CoordinatorMessage message) = 0;
  // The last call on the link.
  virtual void Close(const absl::Status& status) = 0;
};

class WorkerSessions {
 public:
  struct Options {
    absl::Duration detection = absl::Seconds(10);     // a worker silent for this long counts as disconnected
    absl::Duration orphan_grace = absl::Minutes(30);  // sent to the workers
  };

  WorkerSessions(const Options& options, Ledger* ledger)
      : options_(options), ledger_(ledger), liveness_(options.detection) {}

  // Handles a message whose form the transport has checked; the first one is a Hello. One message of a stream at a
  // time: the next one may come after the turn's commit.
  void Receive(Turn& turn, const std::shared_ptr<WorkerLink>& link, const WorkerMessage& message);
  // The stream broke or was closed.
  void Gone(Turn& turn, const WorkerLink* link);

  void SendDesired(const core::Core& core, const NodeId& node);
  void CloseStream(const core::CloseStream& close);
  // Disconnects the node, whatever its incarnation.
  void CloseNode(Turn& turn, const NodeId& node, const absl::Status& why);
  void Acknowledge(const StoredInput& stored);
  const NodeUses& uses() const { return uses_; }

  // Disconnects workers that have been silent for too long.
  void CheckLiveness(Turn& turn);
  // Closes all streams and ignores their later messages, so that their nodes do not count as away.
  void CloseAll(const absl::Status& why);

 private:
  // For one rank: input up to here was received (duplicates are skipped), and stored.
  struct Acknowledgements {
    store::Acknowledged received;
    store::Acknowledged stored;
  };
  struct Session {
    std::shared_ptr<WorkerLink> link;
    NodeId node;
    Incarnation incarnation;
    std::map<RankId, Acknowledgements> ranks;
    uint32_t protocol = 0;  // the newest that both sides speak
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
  std::map<const WorkerLink*, NodeId> nodes_;  // node of each session's link
  std::map<RankId, NodeId> staged_by_;         // the node that gets the acknowledgement of a rank's input
  Liveness liveness_;
  NodeUses uses_;
  bool closed_ = false;
};

}  // namespace muster::server
