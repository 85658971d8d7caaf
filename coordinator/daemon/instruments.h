// The coordinator's own instrumentation: counts what happens in the loop and in calls, serves the /metrics page, and
// writes the TensorBoard folder, from which it removes deleted jobs.
//
//   Instruments instruments;
//   loop = Loop::Start({..., .observer = &instruments});
//   builder.experimental().SetInterceptorCreators(instruments.CallCounters());
//   instruments.Serve("127.0.0.1:9464", MetricsEndpoint::Reach::kThisMachine, /*of_jobs=*/true, loop);
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics/endpoint.h"
#include "coordinator/daemon/front_door.h"
#include "coordinator/daemon/tensorboard_writer.h"
#include "coordinator/metrics/measures.h"
#include "coordinator/server/loop.h"
#include "coordinator/tracking/tracker.h"

namespace muster::server {

class Instruments final : public LoopObserver {
 public:
  // Called before the first request to the loop: from now on writes the TensorBoard folder of `loop`. Errors as
  // TensorBoardLog::Open.
  absl::Status WriteTensorBoard(const std::string& folder, Loop* loop);
  // Its counts are part of the page. Outlives this object's endpoint.
  void WatchConnections(const FrontDoor* door) { door_ = door; }
  // Likewise.
  void WatchTracker(const tracking::Tracker* tracker) { tracker_ = tracker; }
  // Whether new jobs are accepted, as the page says it; called on any thread.
  void WatchRoom(std::function<absl::Status()> room) { room_ = std::move(room); }
  // Serves GET /metrics, which asks no one who he is; `of_jobs`: also with what single jobs do. Errors as
  // MetricsEndpoint::Start.
  absl::Status Serve(const std::string& address, MetricsEndpoint::Reach reach, bool of_jobs, Loop* loop);
  // The address of /metrics, with the actual port; empty: not served.
  std::string metrics_address() const { return endpoint_ == nullptr ? "" : endpoint_->address(); }

  // Creates one interceptor per call, which counts the call when it finishes. This object outlives the server.
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> CallCounters();

  // Called while the loop still runs, after the last call.
  void Stop();

  // ---- LoopObserver ----
  void TurnEnded(absl::Duration took) override { measures_.ObserveTurn(took); }
  void Committed(absl::Duration took, const std::vector<StateEvent>& events, const core::Core& core) override;
  void Forgot(const JobId& job) override;
  void Dropped(uint64_t items) override { measures_.CountDropped(items); }

 private:
  metrics::Measures measures_;
  std::atomic<const FrontDoor*> door_ = nullptr;
  std::atomic<const tracking::Tracker*> tracker_ = nullptr;
  std::function<absl::Status()> room_;
  std::unique_ptr<TensorBoardWriter> writer_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

}  // namespace muster::server
