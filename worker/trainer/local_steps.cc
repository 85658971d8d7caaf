#include "worker/trainer/local_steps.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/proto_time.h"

namespace muster::trainer {
namespace {

// Of one request, for a decision or for something to fetch.
constexpr absl::Duration kWait = absl::Seconds(5);
// Between two requests, where the reply had something to fetch that could not be fetched.
constexpr absl::Duration kAskAgain = absl::Milliseconds(20), kAsksSlowly = absl::Milliseconds(250);
constexpr absl::Duration kAway = absl::Milliseconds(250);  // between two tries while the coordinator is

bool IsAwayNow(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

// Steps after the last multiple of `every` at which fragment f's turn is.
uint64_t OffsetOf(const Sync& sync, uint32_t fragment) {
  return (uint64_t{fragment} + 1) * sync.every() / sync.fragments() % sync.every();
}

}  // namespace

std::optional<uint32_t> BeginsAfter(const Sync& sync, uint64_t step) {
  for (uint32_t fragment = 0; step > 0 && fragment < sync.fragments(); ++fragment) {
    if (step % sync.every() == OffsetOf(sync, fragment)) return fragment;
  }
  return std::nullopt;
}

std::optional<uint32_t> EndsAfter(const Sync& sync, uint64_t step) {
  return step <= sync.delay() ? std::nullopt : BeginsAfter(sync, step - sync.delay());
}

LocalSteps::LocalSteps(Options options, OuterState* state, Ask ask, std::function<void()> waiting)
    : options_(std::move(options)), state_(state), ask_(std::move(ask)), waiting_(std::move(waiting)) {}

LocalSteps::~LocalSteps() { Join(); }

// Ends the flight's thread.
void LocalSteps::Join() {
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    if (interrupt_) interrupt_();
  }
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mutex_);
  cancelled_ = false;
}

bool LocalSteps::Pause(absl::Duration time) {
  absl::MutexLock lock(&mutex_);
  return !mutex_.AwaitWithTimeout(absl::Condition(&cancelled_), time);
}

Begun LocalSteps::Interruptible() {
  return [this](std::function<void()> interrupt) {
    absl::MutexLock lock(&mutex_);
    interrupt_ = std::move(interrupt);
    if (cancelled_ && interrupt_) interrupt_();
  };
}

bool LocalSteps::DueAfter(uint64_t step) const {
  return BeginsAfter(options_.sync, step).has_value() || (flight_.has_value() && step == options_.steps) ||
         EndsAfter(options_.sync, step).has_value();
}

absl::Status LocalSteps::Start() {
  absl::StatusOr<std::unique_ptr<ReplicaServer>> server = ReplicaServer::Start(options_.host, state_);
  if (!server.ok()) return server.status();
  server_ = *std::move(server);
  LogInfo("local steps", {{"replica", options_.sync.replica()},
                          {"replicas", options_.sync.replicas()},
                          {"every", options_.sync.every()},
                          {"kept_bytes", state_->kept_bytes()},
                          {"address", server_->address()}});
  for (uint32_t fragment = 0; fragment < options_.sync.fragments(); ++fragment) {
    Depart(fragment, nullptr);
    if (absl::Status status = Arrive(); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status LocalSteps::AfterStep(uint64_t step) {
  // The result of an exchange before the next one begins.
  const std::optional<uint32_t> begins = BeginsAfter(options_.sync, step), ends = EndsAfter(options_.sync, step);
  if (flight_.has_value() && (ends == flight_->fragment || begins.has_value())) {
    if (absl::Status status = Arrive(); !status.ok()) return status;
  }
  if (begins.has_value()) {
    absl::StatusOr<std::string> own = state_->Contribution(*begins);
    if (!own.ok()) return own.status();
    Depart(*begins, std::make_shared<const std::string>(*std::move(own)), step);
  }
  if (flight_.has_value() && (options_.sync.delay() == 0 || step == options_.steps)) return Arrive();
  return absl::OkStatus();
}

SyncRequest LocalSteps::RequestOf(uint32_t fragment, const std::map<uint32_t, Held>& held) const {
  SyncRequest request;
  *request.mutable_key() = options_.key;
  request.set_fragment(fragment);
  request.set_exchange(state_->exchange(fragment));
  for (const auto& [replica, of] : held) {
    request.add_holds(replica);
    request.add_held_generations(of.generation);
    request.add_held_steps(of.step);
  }
  request.set_address(server_->address());
  request.set_layout(options_.layout);
  request.set_source_rank(options_.source_rank);
  return request;
}

void LocalSteps::Depart(uint32_t fragment, Bytes own, uint64_t step) {
  Join();
  flight_ = Flight{fragment, step, std::move(own)};
  {
    absl::MutexLock lock(&mutex_);
    result_.reset();
  }
  thread_ = std::thread([this, flight = *flight_] {
    Result result = Run(flight);
    absl::MutexLock lock(&mutex_);
    result_ = std::move(result);
  });
}

absl::StatusOr<Fetched> LocalSteps::Fetch(const std::string& address, uint32_t fragment, const uint64_t* base,
                                          uint32_t replica) {
  std::string secret;
  {
    absl::MutexLock lock(&mutex_);
    if (cancelled_) return absl::CancelledError("the rank is ending");
    secret = secret_;
  }
  const absl::Time begin = absl::Now();
  absl::StatusOr<Fetched> fetched = FetchFrom(address, secret, fragment, base, replica,
                                              absl::Seconds(options_.sync.patience_seconds()), Interruptible());
  if (fetched.ok()) {
    LogDebug("fetched from a replica", {{"replica", replica},
                                        {"address", address},
                                        {"bytes", fetched->bytes.size()},
                                        {"took", absl::Trunc(absl::Now() - begin, absl::Milliseconds(1))}});
  } else if (!absl::IsNotFound(fetched.status()) && !absl::IsCancelled(fetched.status())) {
    LogWarn("cannot fetch from a replica", {{"replica", replica}, {"address", address}, {"error", fetched.status()}});
  }
  return fetched;
}

bool LocalSteps::FetchOffers(const Flight& flight, uint64_t base, const SyncReply& reply,
                             std::map<uint32_t, Held>& held) {
  // Ranks with the same share of the model get it from the first one of them.
  std::string first;
  for (const SyncPeer& peer : reply.peers()) {
    if (peer.replica() == options_.sync.replica()) first = peer.address();
  }
  bool got = false;
  for (const SyncPeer& peer : reply.peers()) {
    const std::string& from = source() ? peer.address() : first;
    if (peer.replica() == options_.sync.replica() || from.empty()) continue;
    const auto older = held.find(peer.replica());
    const bool same_step = older != held.end() && (peer.step() == 0 || older->second.step == peer.step());
    if (same_step && older->second.generation == peer.generation()) continue;
    absl::StatusOr<Fetched> fetched = Fetch(from, flight.fragment, &base, peer.replica());
    if (!fetched.ok()) continue;
    Bytes bytes = std::make_shared<const std::string>(std::move(fetched->bytes));
    server_->Offer(flight.fragment, base, peer.replica(), bytes);
    held[peer.replica()] = {std::move(bytes), peer.generation(), peer.step()};
    got = true;
  }
  return got;
}

bool LocalSteps::FetchState(const Flight& flight, const SyncReply& reply, Result& result) {
  for (const SyncPeer& peer : reply.peers()) {
    absl::StatusOr<Fetched> fetched = Fetch(peer.address(), flight.fragment, nullptr, peer.replica());
    if (!fetched.ok() || fetched->exchange != reply.exchange()) continue;
    result.kind = Kind::kCatchUp;
    result.exchange = reply.exchange();
    result.state = std::move(fetched->bytes);
    return true;
  }
  return false;
}

LocalSteps::Result LocalSteps::Run(const Flight& flight) {
  Result result;
  const uint64_t base = state_->exchange(flight.fragment);
  std::map<uint32_t, Held> held;
  if (flight.own != nullptr) {
    held[options_.sync.replica()] = {flight.own, options_.key.generation(), flight.step};
    server_->Offer(flight.fragment, base, options_.sync.replica(), flight.own);
  }
  absl::Duration pause = kAskAgain;
  while (true) {
    SyncRequest request = RequestOf(flight.fragment, held);
    request.set_offers(flight.own != nullptr);
    request.set_step(flight.step);
    *request.mutable_wait() = ToProto(kWait);
    const auto asked = std::chrono::steady_clock::now();
    const absl::StatusOr<SyncReply> reply = ask_(request, Interruptible());
    if (!reply.ok() && IsAwayNow(reply.status())) {
      if (!Pause(kAway)) return result;
      continue;
    }
    if (!reply.ok()) {
      result.status = reply.status();
      return result;
    }
    server_->UseSecret(reply->secret());
    {
      absl::MutexLock lock(&mutex_);
      secret_ = reply->secret();
    }
    switch (reply->decision()) {
      case SyncReply::WAIT:
        if (flight.own == nullptr) return result;
        if (FetchOffers(flight, base, *reply, held)) {
          pause = kAskAgain;
          continue;
        }
        break;
      case SyncReply::APPLY:
        result.kind = Kind::kApply;
        result.exchange = reply->exchange();
        for (const uint32_t member : reply->members()) {
          const auto of = held.find(member);
          if (of == held.end()) {
            result.status = absl::InternalError(absl::StrCat("exchange ", reply->exchange(),
                                                             " was decided with a contribution of replica ", member,
                                                             ", which this rank does not have"));
            return result;
          }
          result.contributions.emplace(member, of->second.bytes);
        }
        return result;
      case SyncReply::CATCH_UP:
        if (FetchState(flight, *reply, result)) return result;
        break;
      case SyncReply::SKIP:
        result.kind = Kind::kSkip;
        return result;
      default:
        result.status = absl::InternalError("the coordinator's answer to Sync has no decision");
        return result;
    }
    if (!Pause(pause - absl::FromChrono(std::chrono::steady_clock::now() - asked))) return result;
    pause = std::min(2 * pause, kAsksSlowly);
  }
}

// Whether all ranks of the replica found the same.
absl::StatusOr<bool> LocalSteps::AllHave(const Result& own) const {
  if (options_.world == nullptr) {
    if (!own.status.ok()) return own.status;
    return true;
  }
  collectives::Group& world = *options_.world;
  const at::Device device(options_.device == DEVICE_CUDA ? at::kCUDA : at::kCPU);
  const double code = own.status.ok() ? static_cast<double>(own.exchange * 4 + static_cast<uint64_t>(own.kind)) : -1;
  const at::Tensor codes = at::zeros({world.size()}, at::TensorOptions(at::kDouble).device(device));
  codes[world.rank()] = code;
  const absl::Status reduced = world.AllReduce(codes)->Wait();
  if (!own.status.ok()) return own.status;
  if (!reduced.ok()) return reduced;
  const at::Tensor found = codes.cpu();
  if (absl::Status health = world.Health(); !health.ok()) return health;
  bool same = true;
  for (int64_t rank = 0; rank < world.size(); ++rank) {
    const double of = found[rank].item<double>();
    if (of < 0)
      return absl::UnavailableError("another rank failed in an exchange with other replicas; see its message");
    same = same && of == code;
  }
  return same;
}

absl::Status LocalSteps::Arrive() {
  while (true) {
    const absl::Time begin = absl::Now();
    std::optional<Result> result;
    while (!result.has_value()) {
      waiting_();
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(
                                  +[](std::optional<Result>* of) { return of->has_value(); }, &result_),
                              absl::Milliseconds(100));
      if (result_.has_value()) result = std::move(result_), result_.reset();
    }
    const absl::StatusOr<bool> all = AllHave(*result);
    if (!all.ok()) return all.status();
    const uint32_t fragment = flight_->fragment;
    if (*all) {
      const absl::Duration waited = absl::Now() - begin;
      flight_.reset();
      std::vector<uint32_t> replicas;
      for (const auto& [replica, bytes] : result->contributions) replicas.push_back(replica);
      const std::string listed = absl::StrJoin(replicas, ",");
      const std::vector<LogField> fields = {{"exchange", result->exchange},
                                            {"fragment", fragment},
                                            {"replicas", listed},
                                            {"waited", absl::Trunc(waited, absl::Milliseconds(1))}};
      if (result->kind == Kind::kApply) LogInfo("exchanged with other replicas", fields);
      if (result->kind == Kind::kCatchUp) LogInfo("caught up with other replicas", fields);
      return Take(*result, fragment);
    }
    // They asked before and after a decision. Now all of them catch up with what is decided.
    Depart(fragment, nullptr);
  }
}

absl::Status LocalSteps::Take(const Result& result, uint32_t fragment) {
  switch (result.kind) {
    case Kind::kApply: {
      std::vector<absl::string_view> contributions;
      for (const auto& [replica, bytes] : result.contributions) contributions.emplace_back(*bytes);
      if (absl::Status status = state_->Apply(fragment, result.exchange, contributions); !status.ok()) return status;
      break;
    }
    case Kind::kCatchUp:
      if (absl::Status status = state_->Adopt(fragment, result.exchange, result.state); !status.ok()) return status;
      break;
    default:
      return absl::OkStatus();
  }
  // Those that catch up learn that it is here: the reply does not wait, and Join waits for it.
  Join();
  thread_ = std::thread([this, request = RequestOf(fragment, {})] {
    while (!ask_(request, [](const std::function<void()>&) {}).ok()) {
      if (!Pause(kAway)) return;
    }
  });
  return absl::OkStatus();
}

}  // namespace muster::trainer
