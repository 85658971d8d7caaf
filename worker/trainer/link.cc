#include "worker/trainer/link.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/log/log.h"
#include "common/proto_time.h"
#include "common/rpc/rpc.h"
#include "common/version.h"
#include "proto/trainer_service.grpc.pb.h"

namespace muster::trainer {
namespace {

constexpr absl::Duration kSyncDeadline = absl::Seconds(15);  // of a reply from the coordinator, beside its wait

}  // namespace

struct Link::State {
  explicit State(Options given)
      : options(std::move(given)),
        stub(Trainer::NewStub(rpc::Dial(absl::StrCat("unix:", options.socket)))),
        commands([this] { Commands(); }),
        bell([this] { Bell(); }) {}

  ~State() {
    {
      absl::MutexLock lock(&mutex);
      ending = true;
      if (attached != nullptr) attached->TryCancel();
      if (reporting != nullptr) reporting->TryCancel();
    }
    commands.join();
    bell.join();
  }

  void Commands();
  absl::Status Attach(bool& got_command);
  void Take(const Command& command);
  void Bell();

  const Options options;
  const std::unique_ptr<Trainer::Stub> stub;

  mutable absl::Mutex mutex;
  bool ending ABSL_GUARDED_BY(mutex) = false;
  std::optional<Assignment> assignment ABSL_GUARDED_BY(mutex);  // the first
  absl::Status refused ABSL_GUARDED_BY(mutex);
  Received received ABSL_GUARDED_BY(mutex);
  uint64_t sequence ABSL_GUARDED_BY(mutex) = 0;
  uint64_t step ABSL_GUARDED_BY(mutex) = 0;
  bool rung ABSL_GUARDED_BY(mutex) = false;
  bool away ABSL_GUARDED_BY(mutex) = false;  // the last report did not reach the worker
  grpc::ClientContext* attached ABSL_GUARDED_BY(mutex) = nullptr;
  grpc::ClientContext* reporting ABSL_GUARDED_BY(mutex) = nullptr;

  std::thread commands;
  std::thread bell;
};

// Opens one stream and reads it to its end. Sets `got_command` once a command arrives.
absl::Status Link::State::Attach(bool& got_command) {
  grpc::ClientContext context;
  rpc::AddCallMetadata("", context);
  {
    absl::MutexLock lock(&mutex);
    if (ending) return absl::CancelledError("ending");
    attached = &context;
  }
  AttachRequest request;
  *request.mutable_key() = options.key;
  request.set_protocol(kProtocol);
  request.set_oldest_protocol(kOldestProtocol);
  request.set_version(kVersion);
  const auto reader = stub->Attach(&context, request);
  Command command;
  while (reader->Read(&command)) {
    got_command = true;
    Take(command);
  }
  const absl::Status status = rpc::FromGrpc(reader->Finish());
  absl::MutexLock lock(&mutex);
  attached = nullptr;
  return status;
}

void Link::State::Take(const Command& command) {
  absl::MutexLock lock(&mutex);
  if (command.has_assignment()) {
    if (!assignment.has_value()) assignment = command.assignment();
    ++received.assignments;
    received.checkpoint_request = command.assignment().checkpoint_request();
    if (command.assignment().has_trace()) received.trace = command.assignment().trace();
    received.published.assign(command.assignment().published().begin(), command.assignment().published().end());
  }
  if (command.has_stop()) received.stop = command.stop().stop();
}

void Link::State::Commands() {
  absl::Duration backoff = options.first_backoff;
  std::string last;
  while (true) {
    bool got_command = false;
    const absl::Status status = Attach(got_command);
    if (got_command) backoff = options.first_backoff;
    absl::MutexLock lock(&mutex);
    if (ending) return;
    const bool final =
        status.code() == absl::StatusCode::kFailedPrecondition || status.code() == absl::StatusCode::kInvalidArgument;
    if (final && !assignment.has_value()) {
      refused = absl::Status(status.code(), absl::StrCat("the worker refuses this rank: ", status.message()));
      return;
    }
    // Logged once per cause: the worker may be away for a long time.
    std::string text = status.ok() ? "the stream ended" : status.ToString();
    if (got_command || text != last) {
      if (assignment.has_value()) {
        LogWarn("lost the worker daemon; training continues", {{"socket", options.socket}, {"error", text}});
      } else {
        LogWarn("no contact with the worker daemon; retrying", {{"socket", options.socket}, {"error", text}});
      }
    }
    last = std::move(text);
    mutex.AwaitWithTimeout(absl::Condition(&ending), backoff);
    if (ending) return;
    backoff = std::min(2 * backoff, options.max_backoff);
  }
}

void Link::State::Bell() {
  while (true) {
    ReportRequest request;
    grpc::ClientContext context;
    {
      absl::MutexLock lock(&mutex);
      mutex.Await(absl::Condition(
          +[](State* state) {
            state->mutex.AssertHeld();
            return state->ending || state->rung;
          },
          this));
      if (ending) return;
      rung = false;
      *request.mutable_key() = options.key;
      request.set_sequence(sequence);
      request.set_step(step);
      reporting = &context;
    }
    rpc::AddCallMetadata("", context);
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(2)));
    ReportReply reply;
    // A failed call loses nothing: the worker also polls the outbox.
    const grpc::Status status = stub->Report(&context, request, &reply);
    absl::MutexLock lock(&mutex);
    reporting = nullptr;
    // While the worker is away, later records are not delivered.
    const bool was_away = std::exchange(away, status.error_code() == grpc::StatusCode::UNAVAILABLE);
    if (!away || !was_away) received.undelivered_after = status.ok() ? reply.sent() : request.sequence();
    received.undelivered_until = request.sequence();
    mutex.AwaitWithTimeout(absl::Condition(&ending), options.doorbell);
  }
}

Link::Link(Options options) : state_(std::make_unique<State>(std::move(options))) {}
Link::~Link() = default;

absl::StatusOr<Assignment> Link::WaitForAssignment(const std::function<bool()>& interrupted) {
  State& state = *state_;
  const auto decided = [](State* s) {
    s->mutex.AssertHeld();
    return s->assignment.has_value() || s->received.stop.has_value() || !s->refused.ok();
  };
  while (!interrupted()) {
    absl::MutexLock lock(&state.mutex);
    if (!state.mutex.AwaitWithTimeout(absl::Condition(+decided, &state), absl::Milliseconds(50))) continue;
    if (!state.refused.ok()) return state.refused;
    if (state.received.stop.has_value()) return absl::CancelledError("asked to stop before the first step");
    return *state.assignment;
  }
  return absl::CancelledError("interrupted before the first step");
}

Link::Received Link::Newest() const {
  absl::MutexLock lock(&state_->mutex);
  return state_->received;
}

absl::StatusOr<SyncReply> Link::Sync(const SyncRequest& request,
                                     const std::function<void(std::function<void()>)>& begun) const {
  grpc::ClientContext context;
  rpc::AddCallMetadata("", context);
  context.set_deadline(absl::ToChronoTime(absl::Now() + FromProto(request.wait()) + kSyncDeadline));
  SyncReply reply;
  begun([&context] { context.TryCancel(); });
  const grpc::Status status = state_->stub->Sync(&context, request, &reply);
  begun(nullptr);
  if (!status.ok()) return rpc::FromGrpc(status);
  return reply;
}

void Link::Ring(uint64_t sequence, uint64_t step) {
  absl::MutexLock lock(&state_->mutex);
  state_->sequence = sequence;
  state_->step = step;
  state_->rung = true;
}

}  // namespace muster::trainer
