// The Trainer service (proto/trainer_service.proto) on RUN_DIR/trainer.sock.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/trainer.pb.h"
#include "worker/agent/event_loop.h"

namespace muster::agent {

// One trainer's command stream. Thread-safe; gone streams ignore calls.
class CommandStream {
 public:
  virtual ~CommandStream() = default;
  virtual void Send(Command command) = 0;
  virtual void Close(const absl::Status& status) = 0;
};

// An answer that may come later, on the loop's thread, once. It is ignored when its caller has gone.
using ValueCallback = std::function<void(absl::StatusOr<std::string>)>;

// Handles the trainers' calls, on the loop's thread. Callers are verified to be processes of that rank.
class TrainerHost {
 public:
  virtual ~TrainerHost() = default;
  virtual void Attached(const RankId& rank, std::shared_ptr<CommandStream> commands) = 0;
  virtual void Detached(const RankId& rank, const CommandStream* commands) = 0;
  // `sequence`: the newest record in the outbox. Returns the newest record that the coordinator may have received.
  virtual uint64_t Reported(const RankId& rank, uint64_t step, uint64_t sequence) = 0;
  virtual void Set(const SetRequest& request, ValueCallback done) = 0;  // an empty value when it is set
  virtual void Get(const GetRequest& request, ValueCallback done) = 0;
  // Returns a function that cancels the wait when the trainer has gone; it may be called after `done`, too.
  virtual std::function<void()> Wait(const WaitRequest& request, ValueCallback done) = 0;
  // As Wait.
  virtual std::function<void()> Sync(const SyncRequest& request,
                                     std::function<void(absl::StatusOr<SyncReply>)> done) = 0;
};

// The longest path that a Unix socket can have.
inline constexpr size_t kMaxSocketPathBytes = 107;

class TrainerServer {
 public:
  // Serves `run`/trainer.sock, which it replaces: the caller has locked `run`. `other_users`: ranks run as other users
  // than this process, so any may connect; those that are no ranks are closed at once. `loop` and `host` outlive the
  // server and its Shutdown. InvalidArgument: the path is too long. Else the system's error.
  static absl::StatusOr<std::unique_ptr<TrainerServer>> Start(const std::string& run, bool other_users, EventLoop* loop,
                                                              TrainerHost* host);
  virtual ~TrainerServer() = default;
  // From the loop's thread: ends the calls, running what is posted to the loop meanwhile; trainers attach again at the
  // next daemon. It does not wait for the host's answers. From now on the host is not called, but `done` of its calls
  // and their stop may still be.
  virtual void Shutdown() = 0;
};

}  // namespace muster::agent
