// One stream between a worker daemon and the coordinator over the virtual network: two ordered pipes. What is on its
// way when the route is cut waits, as TCP would send it again; each end learns of the other's end only by a message, or
// by its own time-out.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "absl/status/status.h"
#include "coordinator/server/worker_sessions.h"
#include "coordinator/simulate/world.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

// Between one node and the coordinator.
struct Route {
  bool up = true;    // towards the coordinator
  bool down = true;  // towards the node
  bool both() const { return up && down; }
};

class Connection final : public server::WorkerLink, public std::enable_shared_from_this<Connection> {
 public:
  // The worker's side is called back; `route` and `node` outlive the connection.
  Connection(World* world, const Route* route, WorkerNode* node) : world_(world), route_(route), node_(node) {}

  // ---- The worker's end. ----
  void SendUp(WorkerMessage message);
  // The worker has gone, or gives up.
  void Break();

  // ---- The coordinator's end. ----
  void Send(CoordinatorMessage message) override;
  void Close(const absl::Status& status) override;
  // Its process has died.
  void Reset();

  // The route or an end has changed: what waits may go on.
  void Pump();

 private:
  struct Up {
    SteadyTime at;
    std::optional<WorkerMessage> message;  // none: the end
  };
  struct Down {
    SteadyTime at;
    std::variant<CoordinatorMessage, absl::Status> message;  // a status is the end
  };

  SteadyTime ArrivalBehind(SteadyTime last);
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
  bool reading_ = false;  // the coordinator has not finished with the message before
  bool worker_gone_ = false;
  bool server_gone_ = false;
  uint64_t last_revision_ = 0;
};

}  // namespace muster::simulate
