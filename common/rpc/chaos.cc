#include "common/rpc/chaos.h"

#include <grpcpp/client_context.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"

namespace muster::rpc::chaos {
namespace {

using grpc::experimental::ClientInterceptorFactoryInterface;
using grpc::experimental::ClientRpcInfo;
using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;

struct Shares {
  double requests = 0;
  double replies = 0;
  double streams = 0;
};

struct Network {
  absl::Mutex mutex;
  bool armed ABSL_GUARDED_BY(mutex) = false;
  Shares shares ABSL_GUARDED_BY(mutex);
  std::mt19937_64 random ABSL_GUARDED_BY(mutex);
  std::map<std::string, Count> counts ABSL_GUARDED_BY(mutex);

  bool Draw(double Shares::*share) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return std::uniform_real_distribution<double>(0, 1)(random) < shares.*share;
  }
};

Network& TheNetwork() {
  static Network& network = *new Network;  // outlives every call
  return network;
}

grpc::Status Lost(const char* what) {
  return {grpc::StatusCode::UNAVAILABLE, absl::StrCat(what, " (MUSTER_RPC_CHAOS)")};
}

class UnaryCall final : public Interceptor {
 public:
  explicit UnaryCall(const std::string& method) {
    Network& network = TheNetwork();
    absl::MutexLock lock(&network.mutex);
    Count& count = network.counts[method];
    ++count.calls;
    lose_request_ = network.Draw(&Shares::requests);
    lose_reply_ = !lose_request_ && network.Draw(&Shares::replies);
    count.requests_lost += lose_request_;
    count.replies_lost += lose_reply_;
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    using Point = InterceptionHookPoints;
    if (lose_request_) {
      if (methods->QueryInterceptionHookPoint(Point::PRE_RECV_STATUS)) {
        *methods->GetRecvStatus() = Lost("the request was lost");
      }
      // A hijacked call goes no further, and this interceptor receives the hooks of its answer.
      if (methods->QueryInterceptionHookPoint(Point::PRE_SEND_INITIAL_METADATA)) return methods->Hijack();
    }
    if (lose_reply_ && methods->QueryInterceptionHookPoint(Point::POST_RECV_STATUS)) {
      *methods->GetRecvStatus() = Lost("the reply was lost");
    }
    methods->Proceed();
  }

 private:
  bool lose_request_ = false;
  bool lose_reply_ = false;
};

class Stream final : public Interceptor {
 public:
  explicit Stream(ClientRpcInfo* info) : method_(info->method()), context_(info->client_context()) {
    Network& network = TheNetwork();
    absl::MutexLock lock(&network.mutex);
    ++network.counts[method_].calls;
  }

  void Intercept(InterceptorBatchMethods* methods) override {
    using Point = InterceptionHookPoints;
    const bool message = methods->QueryInterceptionHookPoint(Point::PRE_SEND_MESSAGE) ||
                         methods->QueryInterceptionHookPoint(Point::POST_RECV_MESSAGE);
    if (message) BreakByChance();
    if (methods->QueryInterceptionHookPoint(Point::POST_RECV_STATUS) && Broken()) {
      *methods->GetRecvStatus() = Lost("the stream was broken");
    }
    methods->Proceed();
  }

 private:
  bool Broken() {
    absl::MutexLock lock(&TheNetwork().mutex);
    return broken_;
  }
  void BreakByChance() {
    {
      Network& network = TheNetwork();
      absl::MutexLock lock(&network.mutex);
      if (broken_ || !network.Draw(&Shares::streams)) return;
      broken_ = true;
      ++network.counts[method_].streams_broken;
    }
    context_->TryCancel();
  }

  const std::string method_;
  grpc::ClientContext* const context_;
  bool broken_ = false;  // guarded by the network's mutex: both directions of a stream run at once
};

class Factory final : public ClientInterceptorFactoryInterface {
 public:
  Interceptor* CreateClientInterceptor(ClientRpcInfo* info) override {
    if (info->type() == ClientRpcInfo::Type::UNARY) return new UnaryCall(info->method());  // gRPC deletes it
    return new Stream(info);
  }
};

bool ParseField(const std::string& text, Shares& shares, uint64_t& seed) {
  const std::vector<std::string> parts = absl::StrSplit(text, '=');
  if (parts.size() != 2) return false;
  if (parts[0] == "seed") return absl::SimpleAtoi(parts[1], &seed);
  double share = 0;
  if (!absl::SimpleAtod(parts[1], &share) || !(share >= 0 && share < 1)) return false;
  if (parts[0] == "requests") return shares.requests = share, true;
  if (parts[0] == "replies") return shares.replies = share, true;
  if (parts[0] == "streams") return shares.streams = share, true;
  return false;
}

void ReadEnvironment() {
  const char* const text = std::getenv("MUSTER_RPC_CHAOS");
  if (text == nullptr) return;
  const absl::Status status = Arm(text);
  if (status.ok()) return;
  std::fprintf(stderr, "MUSTER_RPC_CHAOS: %s\n", std::string(status.message()).c_str());
  std::_Exit(2);
}

}  // namespace

absl::Status Arm(std::string_view text) {
  Shares shares;
  uint64_t seed = std::random_device()();
  const std::vector<std::string> fields = absl::StrSplit(std::string(text), ',', absl::SkipEmpty());
  for (const std::string& field : fields) {
    if (ParseField(field, shares, seed)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("\"", field, "\" is not requests=, replies= or streams= with a share from 0 to 1, nor seed=N"));
  }
  Network& network = TheNetwork();
  absl::MutexLock lock(&network.mutex);
  network.armed = !fields.empty();
  network.shares = shares;
  network.random.seed(seed);
  network.counts.clear();
  return absl::OkStatus();
}

std::map<std::string, Count> Counts() {
  Network& network = TheNetwork();
  absl::MutexLock lock(&network.mutex);
  return network.counts;
}

std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> Interceptors() {
  [[maybe_unused]] static const bool read = (ReadEnvironment(), true);
  std::vector<std::unique_ptr<ClientInterceptorFactoryInterface>> interceptors;
  Network& network = TheNetwork();
  absl::MutexLock lock(&network.mutex);
  if (network.armed) interceptors.push_back(std::make_unique<Factory>());
  return interceptors;
}

}  // namespace muster::rpc::chaos
