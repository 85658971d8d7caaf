// The service muster.v1.Admin. Thread-safe. `gate` and `loop` outlive it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/rpc/call.h"
#include "coordinator/rpc/sign_ins.h"
#include "coordinator/server/loop.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster::rpc {

class AdminService final : public Admin::CallbackService {
 public:
  // `sign_ins`: null if no web page is served; outlives the service.
  AdminService(std::string state_dir, uint64_t min_free_bytes, SignIns* sign_ins, const Gate* gate, server::Loop* loop)
      : state_dir_(std::move(state_dir)),
        min_free_bytes_(min_free_bytes),
        sign_ins_(sign_ins),
        gate_(gate),
        loop_(loop) {}

  grpc::ServerUnaryReactor* Version(grpc::CallbackServerContext* context, const VersionRequest* request,
                                    VersionReply* reply) override;
  grpc::ServerUnaryReactor* Backup(grpc::CallbackServerContext* context, const BackupRequest* request,
                                   BackupReply* reply) override;
  grpc::ServerUnaryReactor* ListProjects(grpc::CallbackServerContext* context, const ListProjectsRequest* request,
                                         ListProjectsReply* reply) override;
  grpc::ServerUnaryReactor* SetProject(grpc::CallbackServerContext* context, const SetProjectRequest* request,
                                       SetProjectReply* reply) override;
  grpc::ServerUnaryReactor* DeleteProject(grpc::CallbackServerContext* context, const DeleteProjectRequest* request,
                                          DeleteProjectReply* reply) override;
  grpc::ServerUnaryReactor* SetReservation(grpc::CallbackServerContext* context, const SetReservationRequest* request,
                                           SetReservationReply* reply) override;
  grpc::ServerUnaryReactor* DeleteReservation(grpc::CallbackServerContext* context,
                                              const DeleteReservationRequest* request,
                                              DeleteReservationReply* reply) override;
  grpc::ServerUnaryReactor* ListReservations(grpc::CallbackServerContext* context,
                                             const ListReservationsRequest* request,
                                             ListReservationsReply* reply) override;
  grpc::ServerUnaryReactor* ListAudit(grpc::CallbackServerContext* context, const ListAuditRequest* request,
                                      ListAuditReply* reply) override;
  grpc::ServerUnaryReactor* SignIn(grpc::CallbackServerContext* context, const SignInRequest* request,
                                   SignInReply* reply) override;

 private:
  // "project", "nlp". `answer`: called once the event is stored, before the reply leaves.
  template <typename Event>
  grpc::ServerUnaryReactor* Change(grpc::CallbackServerContext* context, std::string_view method, std::string_view kind,
                                   const std::string& name, Event event,
                                   std::function<void(const core::Core& core)> answer = nullptr);

  absl::Status MakeCode(const grpc::CallbackServerContext& context, const Principal& caller, SignInReply& reply) const;

  const std::string state_dir_;
  const uint64_t min_free_bytes_;
  SignIns* const sign_ins_;
  const Gate* const gate_;
  server::Loop* const loop_;
};

}  // namespace muster::rpc
