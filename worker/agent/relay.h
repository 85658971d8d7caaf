// Relays the trainers' rendezvous calls to the coordinator (Workers.RendezvousSet and -Get) and retries while it is
// away: waits are repeated, and keys are set again, also by the next daemon after a restart.
//
// Used on the loop's thread only.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <grpcpp/channel.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "proto/workers_service.grpc.pb.h"
#include "worker/agent/event_loop.h"
#include "worker/agent/trainer_server.h"

namespace muster::agent {

class Relay {
 public:
  // `loop` outlives the relay. `run_dir`: where the ranks' keys are stored for the next daemon.
  Relay(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string run_dir);
  ~Relay();

  // For later calls.
  void UseChannel(std::shared_ptr<grpc::Channel> channel) { stub_ = Workers::NewStub(std::move(channel)); }

  // As in proto/trainer_service.proto. `done` is called on the loop's thread; by Set once the coordinator has the key.
  void Set(const SetRequest& request, ValueCallback done);
  void Get(const GetRequest& request, ValueCallback done);
  std::function<void()> Wait(const WaitRequest& request, ValueCallback done);

  // Once: the trainer asks again by itself.
  std::function<void()> Sync(const SyncRequest& request, std::function<void(absl::StatusOr<SyncReply>)> done);

  // Loads the keys of a rank that an earlier daemon started; the coordinator may not have them.
  void Adopt(const RankId& rank);
  // Sets all keys again: the coordinator is back, and may have lost them.
  void Resend();
  // The rank has ended. Ranks elsewhere may still need its keys, so they are sent again for a while, or until the
  // coordinator says that the generation is over.
  void RankEnded(const RankId& rank);

 private:
  struct Pending;  // one Wait
  template <typename Request, typename Reply>
  struct Call;

  void Ask(const std::shared_ptr<Pending>& pending);
  void Answered(const std::shared_ptr<Pending>& pending, absl::StatusOr<std::string> value);
  void TrySet(const RendezvousSetRequest& request, SteadyTime until, ValueCallback done);
  void SendSet(const RendezvousSetRequest& request, std::function<void(absl::Status)> done);

  EventLoop* const loop_;
  std::unique_ptr<Workers::Stub> stub_;
  const std::string token_, run_dir_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  struct Keys {
    std::map<std::string, std::string> values;  // at most what the coordinator took
    std::optional<SteadyTime> ended;            // when the rank did
  };
  void Keep(const RendezvousSetRequest& set);
  void DropOldKeys();
  std::map<RankId, Keys> keys_;
};

}  // namespace muster::agent
