// The service muster.v1.Nodes. Thread-safe. `gate` and `loop` outlive it.
#pragma once

#include <string>

#include "coordinator/rpc/call.h"
#include "coordinator/server/loop.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster::rpc {

class NodesService final : public Nodes::CallbackService {
 public:
  NodesService(const Gate* gate, server::Loop* loop) : gate_(gate), loop_(loop) {}

  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const ListNodesRequest* request,
                                 ListNodesReply* reply) override;
  grpc::ServerUnaryReactor* Use(grpc::CallbackServerContext* context, const NodeUseRequest* request,
                                NodeUseReply* reply) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const DrainRequest* request,
                                  DrainReply* reply) override;
  grpc::ServerUnaryReactor* Undrain(grpc::CallbackServerContext* context, const UndrainRequest* request,
                                    UndrainReply* reply) override;
  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context, const ForgetRequest* request,
                                   ForgetReply* reply) override;

 private:
  template <typename Event, typename Reply>
  grpc::ServerUnaryReactor* Change(grpc::CallbackServerContext* context, std::string_view method,
                                   const std::string& node, Reply* reply);

  const Gate* const gate_;
  server::Loop* const loop_;
};

}  // namespace muster::rpc
