// One stream between a worker daemon and the coordinator over the virtual network: two ordered pipes. While the route
// is cut, messages in transit wait, as with TCP retransmission; each end learns of the other's end only by a message or
// by its own time-out.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "coordinator/server/worker_sessions.h"
#include "coordinator/simulate/world.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

// The route between one node and the coordinator.
struct Route {
  bool up = true;    // towards the coordinator
  bool down = true;  // towards the node
  bool both() const { return up && down; }
};

class Connection final : public server::WorkerLink, public std::enable_shared_from_this<Connection> {
 public:
  // Calls back the worker's side. `route` and `node` outlive the connection.
  Connection(World* world, const Route* route, WorkerNode* node) : world_(world), route_(route), node_(node) {}

  // ---- The worker's end. ----
  void SendUp(WorkerMessage message);
  // The worker closes the stream or times out.
  void Break();

  // ---- The coordinator's end. ----
  void Send(CoordinatorMessage message) override;
  void Close(const absl::Status& status) override;
  // The coordinator's process has crashed.
  void Reset();

  // The route or an end has changed: waiting messages may continue.
  void Pump();

 private:
  struct Up {
    SteadyTime at;
    std::optional<WorkerMessage> message;  // none: end of stream
  };
  struct Down {
    SteadyTime at;
    std::variant<CoordinatorMessage, absl::Status> message;  // a status ends the stream
    uint64_t restores;                                       // Judge::restores when it was sent
  };

  SteadyTime ArrivalAfter(SteadyTime last);
  void NameGenerations(Desired& desired) const;
  void PumpAt(SteadyTime when);
  bool DeliverUp();
  bool DeliverDown();

  World* const world_;
  const Route* const route_;
  WorkerNode* const node_;
  std::shared_ptr<Life> server_;  // the run of the coordinator that took the Hello
  std::deque<Up> up_;
  std::deque<Down> down_;
  SteadyTime last_up_, last_down_;
  bool reading_ = false;  // the coordinator still handles the previous message
  bool worker_gone_ = false;
  bool server_gone_ = false;
  uint64_t last_revision_ = 0;
  std::map<std::string, uint64_t> generations_;  // that the worker's Hello has reported
};

}  // namespace muster::simulate
