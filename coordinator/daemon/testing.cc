#include "coordinator/daemon/testing.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/rpc.h"

namespace muster::server {

JobSpec SmallSpec(const std::string& name) {
  JobSpec spec;
  spec.set_api_version("muster/v1");
  spec.set_kind("Job");
  spec.set_name(name);
  spec.mutable_train()->mutable_model()->mutable_gpt2()->set_size(GPT2_SIZE_TINY);
  spec.mutable_train()->mutable_data()->set_tokens("/data/train.bin");
  spec.mutable_train()->set_steps(kSmallSteps);
  return spec;
}

Client::Client(const std::string& address, std::string token, const rpc::Security& security)
    : token_(std::move(token)),
      channel_(rpc::Dial(address, security)),
      jobs_(Jobs::NewStub(channel_)),
      nodes_(Nodes::NewStub(channel_)),
      admin_(Admin::NewStub(channel_)),
      workers_(Workers::NewStub(channel_)),
      trust_(Trust::NewStub(channel_)) {}

std::unique_ptr<grpc::ClientContext> Client::Context(absl::Duration deadline) const {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(absl::ToChronoTime(absl::Now() + deadline));
  rpc::AddCallMetadata(token_, *context);
  return context;
}

grpc::Status Client::Submit(const std::string& request_id, const JobSpec& spec, SubmitReply* reply) {
  SubmitRequest request;
  request.set_request_id(request_id);
  *request.mutable_spec() = spec;
  return jobs_->Submit(Context().get(), request, reply);
}

std::string Client::MustSubmit(const std::string& name) {
  SubmitReply reply;
  const grpc::Status status = Submit(absl::StrCat("request-", name), SmallSpec(name), &reply);
  if (!status.ok()) {
    std::fprintf(stderr, "Submit: %s\n", status.error_message().c_str());
    std::abort();
  }
  return reply.job().id();
}

grpc::Status Client::Get(const std::string& job, GetJobReply* reply) {
  GetJobRequest request;
  request.set_job(job);
  return jobs_->Get(Context().get(), request, reply);
}

JobState Client::StateOf(const std::string& job) {
  GetJobReply reply;
  return Get(job, &reply).ok() ? reply.job().state() : JOB_STATE_UNSPECIFIED;
}

grpc::Status Client::Watch(const WatchRequest& request, std::vector<WatchItem>* items,
                           const std::function<bool(const std::vector<WatchItem>&)>& enough, absl::Duration deadline) {
  const std::unique_ptr<grpc::ClientContext> context = Context(deadline);
  const auto reader = jobs_->Watch(context.get(), request);
  WatchItem item;
  bool cancelled = false;
  while (!cancelled && reader->Read(&item)) {
    items->push_back(item);
    if (enough == nullptr || !enough(*items)) continue;
    context->TryCancel();
    cancelled = true;
  }
  const grpc::Status status = reader->Finish();
  return cancelled ? grpc::Status::OK : status;
}

}  // namespace muster::server
