// The worker's stream to the coordinator (Workers.Connect): one attempt at a time.
//
// Used on the loop's thread only; gRPC's threads post to the loop.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/channel.h>

#include "absl/status/status.h"
#include "proto/worker.pb.h"
#include "worker/agent/event_loop.h"

namespace muster::agent {

class CoordinatorStream {
 public:
  // Called on the loop's thread, never after the stream object is destroyed.
  struct Handler {
    std::function<void(CoordinatorMessage)> received;
    std::function<void(absl::Status)> ended;  // once per Open
  };

  // `loop` outlives the stream.
  CoordinatorStream(EventLoop* loop, std::shared_ptr<grpc::Channel> channel, std::string token, Handler handler);
  ~CoordinatorStream();

  // Begins an attempt and says Hello. REQUIRES: none is open.
  void Open(const Hello& hello);
  // For later attempts.
  void UseChannel(std::shared_ptr<grpc::Channel> channel) { channel_ = std::move(channel); }
  // Ignored when none is open.
  void Send(WorkerMessage message);
  // Half-closes after the queued messages; `ended` follows once the coordinator has received them.
  void Close();
  // Ends the attempt; `ended` follows with `why`.
  void Break(const absl::Status& why);
  bool is_open() const { return session_ != nullptr; }
  // Messages that gRPC has not taken yet.
  size_t queued() const;

 private:
  class Session;
  struct Owner;  // lets late posts find that the stream has gone

  EventLoop* const loop_;
  std::shared_ptr<grpc::Channel> channel_;
  const std::string token_;
  const std::shared_ptr<Owner> owner_;
  std::shared_ptr<Session> session_;
};

}  // namespace muster::agent
