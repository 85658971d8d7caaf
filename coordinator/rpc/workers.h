// The service muster.v1.Workers. Thread-safe. `gate` and `loop` outlive it.
#pragma once

#include "coordinator/rpc/call.h"
#include "coordinator/server/loop.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::rpc {

class WorkersService final : public Workers::CallbackService {
 public:
  WorkersService(const Gate* gate, server::Loop* loop) : gate_(gate), loop_(loop) {}

  grpc::ServerBidiReactor<WorkerMessage, CoordinatorMessage>* Connect(grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* RendezvousSet(grpc::CallbackServerContext* context, const RendezvousSetRequest* request,
                                          RendezvousSetReply* reply) override;
  grpc::ServerUnaryReactor* RendezvousGet(grpc::CallbackServerContext* context, const RendezvousGetRequest* request,
                                          RendezvousGetReply* reply) override;
  grpc::ServerUnaryReactor* Sync(grpc::CallbackServerContext* context, const SyncRequest* request,
                                 SyncReply* reply) override;
  grpc::ServerWriteReactor<TableChunk>* FetchTable(grpc::CallbackServerContext* context,
                                                   const FetchTableRequest* request) override;

 private:
  const Gate* const gate_;
  server::Loop* const loop_;
};

}  // namespace muster::rpc
