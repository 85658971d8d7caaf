// The service muster.v1.Jobs: turns requests into events of the loop, and its state into replies. Semantics:
// proto/jobs_service.proto.
//
// Thread-safe. `gate` and `loop` outlive it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/rpc/call.h"
#include "coordinator/server/loop.h"
#include "coordinator/spec/resolve.h"
#include "proto/jobs_service.grpc.pb.h"

namespace muster::rpc {

class JobsService final : public Jobs::CallbackService {
 public:
  struct Options {
    std::string state_dir;
    uint64_t min_free_bytes = uint64_t{256} << 20;  // with less, Submit is refused
    spec::Limits limits;
    std::string tensorboard_dir;  // TensorBoard folder of all jobs; empty: not written
    bool private_jobs = false;    // only its owner and admins read a job; others see that it is there
  };

  JobsService(const Options& options, const Gate* gate, server::Loop* loop)
      : options_(options), gate_(gate), loop_(loop) {}

  grpc::ServerUnaryReactor* Submit(grpc::CallbackServerContext* context, const SubmitRequest* request,
                                   SubmitReply* reply) override;
  grpc::ServerUnaryReactor* Plan(grpc::CallbackServerContext* context, const PlanRequest* request,
                                 PlanReply* reply) override;
  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context, const GetJobRequest* request,
                                GetJobReply* reply) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const ListJobsRequest* request,
                                 ListJobsReply* reply) override;
  grpc::ServerUnaryReactor* Cancel(grpc::CallbackServerContext* context, const CancelRequest* request,
                                   CancelReply* reply) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const PauseRequest* request,
                                  PauseReply* reply) override;
  grpc::ServerUnaryReactor* Resume(grpc::CallbackServerContext* context, const ResumeRequest* request,
                                   ResumeReply* reply) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context, const DeleteRequest* request,
                                   DeleteReply* reply) override;
  grpc::ServerUnaryReactor* Label(grpc::CallbackServerContext* context, const LabelRequest* request,
                                  LabelReply* reply) override;
  grpc::ServerUnaryReactor* Note(grpc::CallbackServerContext* context, const NoteRequest* request,
                                 NoteReply* reply) override;
  grpc::ServerUnaryReactor* Trace(grpc::CallbackServerContext* context, const TraceRequest* request,
                                  TraceReply* reply) override;
  grpc::ServerUnaryReactor* Checkpoint(grpc::CallbackServerContext* context, const CheckpointRequest* request,
                                       CheckpointReply* reply) override;
  grpc::ServerWriteReactor<WatchItem>* Watch(grpc::CallbackServerContext* context,
                                             const WatchRequest* request) override;
  // In templates.cc.
  grpc::ServerUnaryReactor* SetTemplate(grpc::CallbackServerContext* context, const SetTemplateRequest* request,
                                        SetTemplateReply* reply) override;
  grpc::ServerUnaryReactor* GetTemplate(grpc::CallbackServerContext* context, const GetTemplateRequest* request,
                                        GetTemplateReply* reply) override;
  grpc::ServerUnaryReactor* ListTemplates(grpc::CallbackServerContext* context, const ListTemplatesRequest* request,
                                          ListTemplatesReply* reply) override;
  grpc::ServerUnaryReactor* DeleteTemplate(grpc::CallbackServerContext* context, const DeleteTemplateRequest* request,
                                           DeleteTemplateReply* reply) override;

 private:
  absl::Status CheckNotOwnFolder(const std::string& path) const;
  // `event_for`: the event for each of the jobs that `job` names, of those `among`. `details`: of the audit log.
  template <typename Reply, typename EventFor>
  grpc::ServerUnaryReactor* Change(grpc::CallbackServerContext* context, std::string_view method,
                                   const std::string& job, Reply* reply, core::Core::Among among, EventFor event_for,
                                   const std::vector<std::string>& details = {});
  // `event_for`: the event for the caller, who may change the template.
  template <typename EventFor>
  grpc::ServerUnaryReactor* ChangeTemplate(grpc::CallbackServerContext* context, std::string_view method,
                                           const std::string& name, EventFor event_for);

  const Options options_;
  const Gate* const gate_;
  server::Loop* const loop_;
};

}  // namespace muster::rpc
