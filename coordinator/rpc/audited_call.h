// Calls that change something, and their entries in the audit log: admitted as all calls (call.h), and recorded with
// their outcome, also where they are refused. Callers who are not known have no entry: anyone may be that.
//
//   absl::StatusOr<AuditedCall> call = AdmitChange(*gate, *context, "/muster.v1.Nodes/Drain", "node", "n1", loop);
//   if (!call.ok()) return EndWith(call.status(), *context);
//   loop->Post([=](Turn& turn) {
//     const core::Outcome& outcome = turn.Handle(event);
//     turn.Audit(call->entry, outcome.status, Turn::Changes(outcome));   // with the change, in one commit
//   });
#pragma once

#include <grpcpp/support/server_callback.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/rpc/call.h"
#include "coordinator/server/loop.h"
#include "proto/job.pb.h"

namespace muster::rpc {

struct AuditedCall {
  Principal caller;
  AuditEntry entry;  // without its time and outcome

  // The same call, about an object that is known by now: "job", "train-x4k2".
  AuditEntry About(std::string_view kind, std::string_view name) const;
};

// "job/train-x4k2": printable, whatever `name` is, and bounded.
std::string ObjectOf(std::string_view kind, std::string_view name);

// As Gate::Admit. The refusal of a known caller is recorded. InvalidArgument: `name` has a token in it, pasted in place
// of a name; neither the status nor the entry repeats it.
absl::StatusOr<AuditedCall> AdmitChange(const Gate& gate, const grpc::ServerContextBase& context,
                                        std::string_view method, std::string_view kind, std::string_view name,
                                        server::Loop* loop);

// Ends a call that changed nothing, or something outside of the loop, once its entry is on disk.
grpc::ServerUnaryReactor* EndAudited(const AuditEntry& entry, const absl::Status& status, bool changed,
                                     grpc::CallbackServerContext& context, server::Loop* loop);

}  // namespace muster::rpc
