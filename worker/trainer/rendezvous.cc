#include "worker/trainer/rendezvous.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "worker/collectives/steady.h"

namespace muster::trainer {
namespace {

constexpr absl::Duration kOneWait = absl::Seconds(1);  // then `interrupted` is polled
constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr absl::Duration kSlack = absl::Seconds(15);  // per call, for a slow coordinator

void Begin(grpc::ClientContext& context, absl::Duration patience) {
  rpc::AddCallMetadata("", context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + patience + kSlack));
}

}  // namespace

Rendezvous::Rendezvous(const std::string& socket, RankKey key, absl::Duration patience,
                       std::function<bool()> interrupted)
    : stub_(Trainer::NewStub(rpc::Dial(absl::StrCat("unix:", socket)))),
      key_(std::move(key)),
      patience_(patience),
      interrupted_(std::move(interrupted)) {}

absl::Status Rendezvous::Set(const std::string& name, const std::string& value) {
  SetRequest request;
  *request.mutable_key() = key_;
  request.set_name(name);
  request.set_value(value);
  const collectives::SteadyPoint deadline = collectives::After(patience_);
  while (true) {
    if (interrupted_()) return absl::CancelledError("interrupted while the ranks meet");
    grpc::ClientContext context;
    Begin(context, absl::ZeroDuration());
    SetReply reply;
    const absl::Status status = rpc::FromGrpc(stub_->Set(&context, request, &reply));
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (collectives::Left(deadline) <= absl::ZeroDuration()) return status;
    absl::SleepFor(kRetry);
  }
}

absl::StatusOr<std::string> Rendezvous::Wait(const std::string& name, absl::Duration timeout) {
  const collectives::SteadyPoint deadline = collectives::After(timeout);
  while (true) {
    if (interrupted_()) return absl::CancelledError("interrupted while the ranks meet");
    const absl::Duration wait = std::clamp(collectives::Left(deadline), absl::ZeroDuration(), kOneWait);
    WaitRequest request;
    *request.mutable_key() = key_;
    request.set_name(name);
    *request.mutable_timeout() = ToProto(wait);
    grpc::ClientContext context;
    Begin(context, wait);
    GetReply reply;
    const absl::Status status = rpc::FromGrpc(stub_->Wait(&context, request, &reply));
    if (status.ok()) return reply.value();
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (collectives::Left(deadline) <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("\"", name, "\" was not set within ", absl::FormatDuration(timeout), ": ", status.message()));
    }
    if (absl::IsUnavailable(status)) absl::SleepFor(kRetry);
  }
}

}  // namespace muster::trainer
