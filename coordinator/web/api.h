// The coordinator's calls as JSON over HTTP: /api/v1/... . Each route makes the gRPC call of the same meaning over a
// channel inside the process, with the caller's token, so the rules of coordinator/rpc/authorize.cc are the only ones.
// Replies are the calls' replies in protobuf's JSON with the fields' names of the .proto. docs:
// coordinator/web/openapi.json.
//
// Errors: {"error": {"code": "NOT_FOUND", "message": "...", "spec_errors": [...]}} with the HTTP status of the code.
//
// Thread-safe. Nothing blocks.
#pragma once

#include <grpcpp/channel.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "common/mutex.h"
#include "coordinator/web/http_server.h"
#include "proto/jobs_service.grpc.pb.h"
#include "proto/trust_service.grpc.pb.h"

namespace muster::web {

struct Route {
  std::string_view method;
  std::string_view path;  // "/api/v1/jobs/{job}/logs"
};

class Api {
 public:
  // `secret`: random, of this process; a call that carries it may name the browser it acts for (rpc::kWebPeer).
  Api(const std::shared_ptr<grpc::Channel>& channel, std::string secret);

  // Answers a request for a path below /api/v1/ as the holder of `token`.
  void Serve(const std::string& token, const std::shared_ptr<Exchange>& exchange) const;
  // All routes that Serve knows.
  static std::vector<Route> Routes();

  // Checks the token, and asks for a sign-in code for it, for a browser at `peer`.
  void SignIn(const std::string& token, const std::string& peer,
              std::function<void(absl::StatusOr<SignInReply>)> done) const;

 private:
  struct Call;
  struct Handler;
  static const std::vector<Handler>& Handlers();

  void Audit(const Call& call) const;
  void Label(const Call& call) const;
  void Note(const Call& call) const;
  void GetJob(const Call& call) const;
  void ListJobs(const Call& call) const;
  void PlanOfJob(const Call& call) const;
  void Plan(const Call& call) const;
  void Submit(const Call& call) const;
  void Trace(const Call& call) const;
  void Metrics(const Call& call) const;
  void Logs(const Call& call) const;
  void Events(const Call& call) const;
  void Watch(const Call& call) const;

  struct Streams {
    Mutex mutex;
    std::map<std::string, size_t> of_token ABSL_GUARDED_BY(mutex);
  };

  const std::shared_ptr<Streams> streams_ = std::make_shared<Streams>();  // outlives this with an open one
  const std::string secret_;
  const std::unique_ptr<Jobs::Stub> jobs_;
  const std::unique_ptr<Nodes::Stub> nodes_;
  const std::unique_ptr<Admin::Stub> admin_;
  const std::unique_ptr<Trust::Stub> trust_;
};

// An error as its HTTP response.
HttpResponse ErrorResponse(const absl::Status& status);
HttpResponse JsonResponse(std::string body);
// A whole number of a query; `otherwise` if it is not there. InvalidArgument.
absl::StatusOr<uint32_t> NumberOf(const HttpRequest& request, const std::string& name, uint32_t otherwise);
// In protobuf's JSON; scalar fields that have their default, 0 or "", may be left out.
enum class Defaults { kShown, kLeftOut };
std::string JsonOf(const google::protobuf::Message& message, Defaults defaults = Defaults::kShown);
// A text with its quotes; bytes that are no UTF-8 are replaced.
std::string JsonText(std::string_view text);

}  // namespace muster::web
