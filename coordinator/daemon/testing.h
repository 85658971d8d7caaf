// Shared by the server's tests: a client and a small job.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/rpc/rpc.h"
#include "proto/jobs_service.grpc.pb.h"
#include "proto/trust_service.grpc.pb.h"
#include "proto/workers_service.grpc.pb.h"

namespace muster::server {

// A job of kSmallSteps steps that needs one slot and writes no checkpoints.
inline constexpr uint64_t kSmallSteps = 10;
JobSpec SmallSpec(const std::string& name);

class Client {
 public:
  // `address`: in gRPC's form.
  explicit Client(const std::string& address, std::string token = "", const rpc::Security& security = {});

  // If OK, `reply` is set.
  grpc::Status Submit(const std::string& request_id, const JobSpec& spec, SubmitReply* reply);
  // CHECK-fails unless accepted.
  std::string MustSubmit(const std::string& name);
  grpc::Status Get(const std::string& job, GetJobReply* reply);
  JobState StateOf(const std::string& job);
  // Reads until the stream ends, or until `enough` accepts the items read (then it cancels, and returns OK).
  grpc::Status Watch(const WatchRequest& request, std::vector<WatchItem>* items,
                     const std::function<bool(const std::vector<WatchItem>&)>& enough = nullptr,
                     absl::Duration deadline = absl::Seconds(30));
  std::unique_ptr<grpc::ClientContext> Context(absl::Duration deadline = absl::Seconds(30)) const;

  Jobs::Stub& jobs() { return *jobs_; }
  Nodes::Stub& nodes() { return *nodes_; }
  Admin::Stub& admin() { return *admin_; }
  Workers::Stub& workers() { return *workers_; }
  Trust::Stub& trust() { return *trust_; }
  const std::shared_ptr<grpc::Channel>& channel() { return channel_; }

 private:
  const std::string token_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Jobs::Stub> jobs_;
  const std::unique_ptr<Nodes::Stub> nodes_;
  const std::unique_ptr<Admin::Stub> admin_;
  const std::unique_ptr<Workers::Stub> workers_;
  const std::unique_ptr<Trust::Stub> trust_;
};

}  // namespace muster::server
