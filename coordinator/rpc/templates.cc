// The calls of muster.v1.Jobs about templates.
#include "absl/strings/str_cat.h"
#include "common/rpc/rpc.h"
#include "common/utf8.h"
#include "coordinator/rpc/audited_call.h"
#include "coordinator/rpc/jobs.h"

namespace muster::rpc {

using server::Turn;

template <typename EventFor>
grpc::ServerUnaryReactor* JobsService::ChangeTemplate(grpc::CallbackServerContext* context, std::string_view method,
                                                      const std::string& name, EventFor event_for) {
  absl::StatusOr<AuditedCall> admitted = AdmitChange(*gate_, *context, method, "template", name, loop_);
  if (!admitted.ok()) return EndWith(admitted.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=, &name, call = *std::move(admitted), event_for = std::move(event_for)](Turn& turn) {
    const Template* known = turn.core().FindTemplate(name);
    absl::Status status =
        known == nullptr ? absl::OkStatus() : Authorize(call.caller, method, Resource{known->owner()});
    bool changed = false;
    if (status.ok()) {
      const core::Outcome& outcome = turn.Handle(event_for(call.caller.name));
      status = outcome.status;
      changed = Turn::Changes(outcome);
    }
    turn.Audit(call.entry, status, changed);
    turn.AfterCommit([=] { reactor->Finish(ToGrpc(status)); });
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobsService::SetTemplate(grpc::CallbackServerContext* context,
                                                   const SetTemplateRequest* request, SetTemplateReply*) {
  return ChangeTemplate(context, "/muster.v1.Jobs/SetTemplate", request->name(), [request](const std::string& user) {
    return core::SetTemplate{request->name(), request->text(), user};
  });
}

grpc::ServerUnaryReactor* JobsService::DeleteTemplate(grpc::CallbackServerContext* context,
                                                      const DeleteTemplateRequest* request, DeleteTemplateReply*) {
  return ChangeTemplate(context, "/muster.v1.Jobs/DeleteTemplate", request->name(),
                        [request](const std::string&) { return core::DeleteTemplate{request->name()}; });
}

grpc::ServerUnaryReactor* JobsService::GetTemplate(grpc::CallbackServerContext* context,
                                                   const GetTemplateRequest* request, GetTemplateReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/GetTemplate");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core()] {
      const Template* found = core.FindTemplate(request->name());
      if (found != nullptr) *reply->mutable_template_() = *found;
      reactor->Finish(found != nullptr ? grpc::Status::OK
                                       : ToGrpc(absl::NotFoundError(absl::StrCat("there is no template ",
                                                                                 CleanText(request->name(), 64),
                                                                                 "; muster templates lists them"))));
    });
  });
  return reactor;
}

grpc::ServerUnaryReactor* JobsService::ListTemplates(grpc::CallbackServerContext* context, const ListTemplatesRequest*,
                                                     ListTemplatesReply* reply) {
  const absl::StatusOr<Principal> caller = gate_->Admit(*context, "/muster.v1.Jobs/ListTemplates");
  if (!caller.ok()) return EndWith(caller.status(), *context);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  loop_->Post([=](Turn& turn) {
    turn.AfterCommit([=, &core = turn.core()] {
      for (Template& found : core.ListTemplates()) *reply->add_templates() = std::move(found);
      reactor->Finish(grpc::Status::OK);
    });
  });
  return reactor;
}

}  // namespace muster::rpc
