#include "worker/agent/relay.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "worker/agent/reconcile.h"
#include "worker/rundir/rundir.h"

namespace muster::agent {
namespace {

constexpr absl::Duration kRelayDeadline = absl::Seconds(10);
constexpr absl::Duration kOneWait = absl::Seconds(30);  // then it is retried
constexpr absl::Duration kRelayRetry = absl::Milliseconds(300);
// A coordinator may be away this long without harm; a rank that never gets through ends earlier with its generation.
constexpr absl::Duration kSetPatience = absl::Minutes(10);

// Ranks join at the start of a generation, which has a deadline of minutes.
constexpr absl::Duration kKeptAfterTheEnd = absl::Minutes(10);

// Whether the error is transient: the coordinator is away, going away, or slow.
bool IsAway(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

RendezvousGetRequest GetOf(const RankKey& key, const std::string& name, absl::Duration wait) {
  RendezvousGetRequest request;
  *request.mutable_key() = key;
  request.set_name(name);
  *request.mutable_wait() = ToProto(wait);
  return request;
}

absl::StatusOr<std::string> Outcome(const grpc::Status& status, const RendezvousGetReply& reply) {
  if (status.ok()) return reply.value();
  return rpc::FromGrpc(status);
}

}  // namespace

// The state of a call until it ends.
template <typename Request, typename Reply>
struct Relay::Call {
  grpc::ClientContext context;
  Request request;
  Reply reply;

  Call(Request r, const std::string& token, absl::Duration deadline) : request(std::move(r)) {
    rpc::AddCallMetadata(token, context);
    context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(deadline));
  }
};

struct Relay::Pending {
  WaitRequest request;
  SteadyTime deadline;
  ValueCallback done;  // null: answered
  std::shared_ptr<Call<RendezvousGetRequest, RendezvousGetReply>> call;

  void Finish(absl::StatusOr<std::string> value) {
    if (!done) return;
    std::exchange(done, nullptr)(std::move(value));
  }
};

Relay::Relay(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string run_dir)
    : loop_(loop),
      stub_(Workers::NewStub(std::move(channel))),
      token_(std::move(token)),
      run_dir_(std::move(run_dir)) {}

Relay::~Relay() { *alive_ = false; }

void Relay::SendSet(const RendezvousSetRequest& request, std::function<void(absl::Status)> done) {
  auto call = std::make_shared<Call<RendezvousSetRequest, RendezvousSetReply>>(request, token_, kRelayDeadline);
  stub_->async()->RendezvousSet(
      &call->context, &call->request, &call->reply,
      [loop = loop_->shared_from_this(), call, alive = alive_, done = std::move(done)](const grpc::Status& status) {
        loop->Post([alive, done, status = rpc::FromGrpc(status)] { done(status); });
      });
}

void Relay::Set(const SetRequest& request, ValueCallback done) {
  RendezvousSetRequest out;
  *out.mutable_key() = request.key();
  out.set_name(request.name());
  out.set_value(request.value());
  TrySet(out, loop_->now().steady + kSetPatience, std::move(done));
}

// A key that is set twice is set once, so one whose answer was lost is sent again.
void Relay::TrySet(const RendezvousSetRequest& out, SteadyTime until, ValueCallback done) {
  SendSet(out, [this, alive = alive_, out, until, done = std::move(done)](const absl::Status& status) {
    if (*alive && IsAway(status) && loop_->now().steady < until) {
      loop_->PostAfter(kRelayRetry, [this, alive, out, until, done] {
        if (*alive) TrySet(out, until, done);
      });
      return;
    }
    if (*alive && status.ok()) Keep(out);
    done(status.ok() ? absl::StatusOr<std::string>("") : status);
  });
}

// Keep it before answering the trainer, which does not set a key again.
void Relay::Keep(const RendezvousSetRequest& set) {
  const RankId rank = RankOf(set.key());
  if (!keys_[rank].values.emplace(set.name(), set.value()).second) return;
  const absl::Status kept = rundir::RankDir(run_dir_, rank).KeepKey(set.name(), set.value());
  if (!kept.ok())
    LogWarn("cannot keep a rendezvous key; a restarted daemon will not know it",
            {rank, {"key", set.name()}, {"error", kept}});
}

void Relay::Adopt(const RankId& rank) {
  std::map<std::string, std::string> values = rundir::RankDir(run_dir_, rank).Keys();
  if (!values.empty()) keys_[rank].values = std::move(values);
}

void Relay::Get(const GetRequest& request, ValueCallback done) {
  using GetCall = Call<RendezvousGetRequest, RendezvousGetReply>;
  auto call =
      std::make_shared<GetCall>(GetOf(request.key(), request.name(), absl::ZeroDuration()), token_, kRelayDeadline);
  stub_->async()->RendezvousGet(
      &call->context, &call->request, &call->reply,
      [loop = loop_->shared_from_this(), call, done = std::move(done)](const grpc::Status& status) {
        auto value = Outcome(status, call->reply);
        loop->Post([done, value = std::move(value)] { done(value); });
      });
}

std::function<void()> Relay::Sync(const SyncRequest& request, std::function<void(absl::StatusOr<SyncReply>)> done) {
  const absl::Duration wait = std::clamp(FromProto(request.wait()), absl::ZeroDuration(), kOneWait);
  auto call = std::make_shared<Call<SyncRequest, SyncReply>>(request, token_, wait + kRelayDeadline);
  *call->request.mutable_wait() = ToProto(wait);
  stub_->async()->Sync(&call->context, &call->request, &call->reply,
                       [loop = loop_->shared_from_this(), call, done = std::move(done)](const grpc::Status& status) {
                         absl::StatusOr<SyncReply> decided = call->reply;
                         if (!status.ok()) decided = rpc::FromGrpc(status);
                         loop->Post([done, decided = std::move(decided)] { done(decided); });
                       });
  return [call] { call->context.TryCancel(); };
}

std::function<void()> Relay::Wait(const WaitRequest& request, ValueCallback done) {
  auto pending = std::make_shared<Pending>();
  pending->request = request;
  pending->deadline = loop_->now().steady + FromProto(request.timeout());
  pending->done = std::move(done);
  Ask(pending);
  return [pending] {
    if (pending->call != nullptr) pending->call->context.TryCancel();
    pending->Finish(absl::CancelledError("the trainer no longer waits"));
  };
}

void Relay::Ask(const std::shared_ptr<Pending>& pending) {
  if (!pending->done) return;
  const absl::Duration left = std::max(absl::ZeroDuration(), pending->deadline - loop_->now().steady);
  const absl::Duration wait = std::min(left, kOneWait);
  pending->call = std::make_shared<Call<RendezvousGetRequest, RendezvousGetReply>>(
      GetOf(pending->request.key(), pending->request.name(), wait), token_, wait + kRelayDeadline);
  stub_->async()->RendezvousGet(&pending->call->context, &pending->call->request, &pending->call->reply,
                                [this, loop = loop_->shared_from_this(), alive = alive_, pending,
                                 call = pending->call](const grpc::Status& status) {
                                  auto value = Outcome(status, call->reply);
                                  loop->Post([this, alive, pending, value = std::move(value)] {
                                    if (*alive) Answered(pending, value);
                                  });
                                });
}

void Relay::Answered(const std::shared_ptr<Pending>& pending, absl::StatusOr<std::string> value) {
  const bool over = loop_->now().steady >= pending->deadline;
  switch (value.status().code()) {
    case absl::StatusCode::kUnavailable:       // away
    case absl::StatusCode::kCancelled:         // going away; a cancellation by the trainer is already answered
    case absl::StatusCode::kDeadlineExceeded:  // of one attempt
    case absl::StatusCode::kNotFound:          // no time was left to wait
      if (over) {
        return pending->Finish(absl::DeadlineExceededError(
            absl::StrCat("\"", pending->request.name(),
                         "\" was not set in time; the coordinator says: ", value.status().message())));
      }
      loop_->PostAfter(kRelayRetry, [this, alive = alive_, pending] {
        if (*alive) Ask(pending);
      });
      return;
    case absl::StatusCode::kFailedPrecondition:
      return pending->Finish(absl::AbortedError(value.status().message()));
    default:
      return pending->Finish(std::move(value));
  }
}

void Relay::Resend() {
  DropOldKeys();
  for (const auto& [rank, keys] : keys_) {
    for (const auto& [name, value] : keys.values) {
      RendezvousSetRequest request;
      *request.mutable_key() = KeyOf(rank);
      request.set_name(name);
      request.set_value(value);
      TrySet(request, loop_->now().steady + kSetPatience,
             [this, alive = alive_, name = name, rank = rank](const absl::StatusOr<std::string>& set) {
               if (set.ok()) return;
               LogDebug("rendezvous key not set again", {rank, {"key", name}, {"error", set.status()}});
               // Its generation is over. Else the next reconnect tries again.
               if (*alive && absl::IsFailedPrecondition(set.status())) keys_.erase(rank);
             });
    }
  }
}

void Relay::RankEnded(const RankId& rank) {
  const auto keys = keys_.find(rank);
  if (keys != keys_.end() && !keys->second.ended.has_value()) keys->second.ended = loop_->now().steady;
  DropOldKeys();
}

void Relay::DropOldKeys() {
  const SteadyTime now = loop_->now().steady;
  std::erase_if(keys_, [&](const auto& entry) {
    return entry.second.ended.has_value() && now - *entry.second.ended > kKeptAfterTheEnd;
  });
}

}  // namespace muster::agent
