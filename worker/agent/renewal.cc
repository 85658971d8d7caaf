#include "worker/agent/renewal.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/log/log.h"
#include "proto/trust_service.grpc.pb.h"

namespace muster::agent {
namespace {

constexpr auto kRenewDeadline = std::chrono::seconds(10);
// Timers use the steady clock but certificates expire by the calendar, so the calendar is checked this often.
constexpr absl::Duration kLook = absl::Minutes(10);

}  // namespace

// The state of a call until it ends.
struct Renewal::Call {
  std::unique_ptr<Trust::Stub> stub;
  grpc::ClientContext context;
  RenewRequest request;
  RenewReply reply;
  std::string key;
};

Renewal::Renewal(Options options, Credentials credentials, EventLoop* loop,
                 std::function<void(const rpc::Security& security)> renewed)
    : options_(std::move(options)),
      credentials_(std::move(credentials)),
      loop_(loop),
      renewed_(std::move(renewed)),
      next_(RenewalTime(credentials_)) {
  Schedule();
}

Renewal::~Renewal() { *alive_ = false; }

void Renewal::Schedule() {
  const absl::Duration left = std::max(absl::Milliseconds(1), next_ - loop_->now().wall);
  loop_->PostAfter(std::min(left, kLook), [this, alive = alive_] {
    if (!*alive) return;
    if (loop_->now().wall >= next_) return Ask();
    Schedule();
  });
}

absl::Duration Renewal::Pause() const {
  return std::clamp(LifeOf(credentials_) / 100, absl::Milliseconds(200), absl::Minutes(10));
}

void Renewal::Ask() {
  const absl::StatusOr<std::string> key = tls::MakeKey();
  const absl::StatusOr<std::string> request = key.ok() ? tls::MakeRequest(*key, options_.node) : key;
  if (!request.ok()) {
    LogError("cannot ask for the next certificate", {{"error", request.status()}});
    next_ = loop_->now().wall + Pause();
    return Schedule();
  }
  auto call = std::make_shared<Call>();
  call->key = *key;
  call->request.set_certificate_request(*request);
  call->stub = Trust::NewStub(rpc::Dial(options_.coordinator, credentials_.security));
  rpc::AddCallMetadata("", call->context);
  rpc::AddTime(loop_->now().wall, call->context);
  call->context.set_deadline(std::chrono::system_clock::now() + kRenewDeadline);
  call->stub->async()->Renew(&call->context, &call->request, &call->reply,
                             [this, call, alive = alive_, loop = loop_->shared_from_this()](const grpc::Status& s) {
                               loop->Post([this, call, alive, status = rpc::FromGrpc(s)] {
                                 if (*alive) Answered(*call, status);
                               });
                             });
}

void Renewal::Answered(const Call& call, const absl::Status& status) {
  absl::StatusOr<Credentials> next = status.ok()
                                         ? KeepCredentials(options_.state_dir, options_.node, call.reply.certificate(),
                                                           call.key, credentials_.security.authority)
                                         : status;
  if (!next.ok()) {
    LogWarn("cannot renew the node certificate yet; retrying",
            {{"expires", credentials_.certificate.validity.end}, {"error", next.status()}});
    next_ = loop_->now().wall + Pause();
    return Schedule();
  }
  credentials_ = *std::move(next);
  next_ = std::max(RenewalTime(credentials_), loop_->now().wall + Pause());  // the clock may be wrong
  LogInfo("node certificate renewed", {{"expires", credentials_.certificate.validity.end}});
  renewed_(credentials_.security);
  Schedule();
}

}  // namespace muster::agent
