#include "coordinator/rpc/nodes.h"

#include <type_traits>

#include "common/rpc/rpc.h"
#include "coordinator/rpc/audited_call.h"

namespace muster::rpc {

using server::Turn;

grpc::ServerUnaryReactor* NodesService::List(grpc::CallbackServerContext* context, const ListNodesRequest*,
                                             ListNodesReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Nodes/List");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core(), &uses = turn.workers().uses()] {
      for (Node& node : core.ListNodes()) {
        Node& listed = *reply->add_nodes() = std::move(node);
        if (const NodeUse* use = uses.Newest(NodeId(listed.id())); use != nullptr) *listed.mutable_use() = *use;
      }
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodesService::Use(grpc::CallbackServerContext* context, const NodeUseRequest* request,
                                            NodeUseReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Nodes/Use");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    for (NodeUse& use : turn.workers().uses().LastHour(NodeId(request->node()), turn.now().steady)) {
      *reply->add_points() = std::move(use);
    }
    turn.AfterCommit([=] { reactor->Finish(grpc::Status::OK); });
  });
  return reactor;
}

template <typename Event, typename Reply>
grpc::ServerUnaryReactor* NodesService::Change(grpc::CallbackServerContext* context, std::string_view method,
                                               const std::string& node, Reply* reply) {
  const absl::StatusOr<AuditedCall> call = AdmitChange(*gate_, *context, method, "node", node, loop_);
  if (!call.ok()) return EndWith(call.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, id = NodeId(node), entry = call->entry](Turn& turn) {
    const core::Outcome& outcome = turn.Handle(Event{id});
    const absl::Status status = outcome.status;
    turn.Audit(entry, status, Turn::Changes(outcome));
    turn.AfterCommit([=, &core = turn.core()] {
      if constexpr (std::is_same_v<Reply, ForgetReply>) {
        reactor->Finish(ToGrpc(status));
      } else {
        const absl::StatusOr<Node> changed = status.ok() ? core.GetNode(id) : status;
        if (changed.ok()) *reply->mutable_node() = *changed;
        reactor->Finish(ToGrpc(changed.status()));
      }
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* NodesService::Drain(grpc::CallbackServerContext* context, const DrainRequest* request,
                                              DrainReply* reply) {
  return Change<core::DrainNode>(context, "/muster.v1.Nodes/Drain", request->node(), reply);
}

grpc::ServerUnaryReactor* NodesService::Undrain(grpc::CallbackServerContext* context, const UndrainRequest* request,
                                                UndrainReply* reply) {
  return Change<core::UndrainNode>(context, "/muster.v1.Nodes/Undrain", request->node(), reply);
}

grpc::ServerUnaryReactor* NodesService::Forget(grpc::CallbackServerContext* context, const ForgetRequest* request,
                                               ForgetReply* reply) {
  return Change<core::ForgetNode>(context, "/muster.v1.Nodes/Forget", request->node(), reply);
}

}  // namespace muster::rpc
