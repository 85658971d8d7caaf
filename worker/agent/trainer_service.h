// Implements the Trainer service: verifies each call, then passes it to the host on the loop's thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/trainer_service.grpc.pb.h"
#include "worker/agent/callers.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/trainer_server.h"

namespace muster::agent {

// Posts calls to the host until the server is shut down. Thread-safe.
class HostGate : public std::enable_shared_from_this<HostGate> {
 public:
  HostGate(EventLoop* loop, TrainerHost* host) : loop_(loop->shared_from_this()), host_(host) {}

  // Calls back on the loop's thread; with a null host once it is closed.
  void Post(std::function<void(TrainerHost*)> callback);
  // From the loop's thread.
  void Close() { host_ = nullptr; }

 private:
  const std::shared_ptr<EventLoop> loop_;
  TrainerHost* host_;  // of the loop's thread
};

class TrainerService final : public Trainer::CallbackService {
 public:
  // `callers` outlives the service.
  TrainerService(std::shared_ptr<HostGate> gate, Callers* callers) : gate_(std::move(gate)), callers_(callers) {}

  grpc::ServerWriteReactor<Command>* Attach(grpc::CallbackServerContext* context,
                                            const AttachRequest* request) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context, const ReportRequest* request,
                                   ReportReply* reply) override;
  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const SetRequest* request,
                                SetReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const GetRequest* request,
                                GetReply* reply) override;
  grpc::ServerUnaryReactor* Sync(grpc::CallbackServerContext* context, const SyncRequest* request,
                                 SyncReply* reply) override;
  grpc::ServerUnaryReactor* Wait(grpc::CallbackServerContext* context, const WaitRequest* request,
                                 GetReply* reply) override;

 private:
  const std::shared_ptr<HostGate> gate_;
  Callers* const callers_;
};

}  // namespace muster::agent
