// The rendezvous calls of trainers, passed on to the coordinator (Workers.RendezvousSet and -Get), and carried over its
// absence: waits are asked again, keys that were set are set again, also by the daemon that follows this one.
//
// Of the loop's thread.
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
  // `loop` outlives the relay. `run_dir`: where the ranks' keys are kept for the daemon that follows.
  Relay(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, std::string run_dir);
  ~Relay();

  // For the calls that follow.
  void UseChannel(std::shared_ptr<grpc::Channel> channel) { stub_ = Workers::NewStub(std::move(channel)); }

  // As in proto/trainer_service.proto. `done` is called on the loop's thread; by Set when the coordinator has the key,
  // also after an absence.
  void Set(const SetRequest& request, ValueCallback done);
  void Get(const GetRequest& request, ValueCallback done);
  std::function<void()> Wait(const WaitRequest& request, ValueCallback done);

  // A rank that an earlier daemon started: what it has set may be known to nobody else.
  void Adopt(const RankId& rank);
  // The coordinator is back, perhaps without its memory.
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
  void TrySet(RendezvousSetRequest request, SteadyTime until, ValueCallback done);
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
