// What a coordinator shows of itself: it counts what happens in the loop and in calls, serves the page of it, and has
// the TensorBoard files of deleted jobs removed.
//
//   Instruments instruments;
//   loop = Loop::Start({..., .observer = &instruments});
//   builder.experimental().SetInterceptorCreators(instruments.CallCounters());
//   instruments.Serve("127.0.0.1:9464", loop);
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/metrics/endpoint.h"
#include "coordinator/metrics/measures.h"
#include "coordinator/server/loop.h"
#include "coordinator/daemon/tensorboard_writer.h"

namespace muster::server {

class Instruments final : public LoopObserver {
 public:
  // Before anything is asked of the loop: writes the TensorBoard folder of `loop` from now on. Errors as
  // TensorBoardLog::Open.
  absl::Status WriteTensorBoard(const std::string& folder, Loop* loop);
  // Serves GET /metrics. Errors as MetricsEndpoint::Start.
  absl::Status Serve(const std::string& address, Loop* loop);
  // Of the metrics, with the port that was chosen; empty: not served.
  std::string metrics_address() const { return endpoint_ == nullptr ? "" : endpoint_->address(); }

  // One interceptor for each call, which counts it when it ends. This object outlives the server.
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> CallCounters();

  // While the loop still runs, when no call does.
  void Stop();

  // ---- LoopObserver ----
  void TurnEnded(absl::Duration took) override { measures_.ObserveTurn(took); }
  void Committed(absl::Duration took, const std::vector<StateEvent>& events, const core::Core& core) override;
  void Forgot(const JobId& job) override;

 private:
  metrics::Measures measures_;
  std::unique_ptr<TensorBoardWriter> writer_;
  std::unique_ptr<MetricsEndpoint> endpoint_;
};

}  // namespace muster::server
