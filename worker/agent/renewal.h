// Renews a node's certificate: when a third of its lifetime is left, requests the next one with a new key
// (Trust.Renew), and retries until it succeeds.
//
// Used on the loop's thread only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/agent/credentials.h"
#include "worker/agent/event_loop.h"

namespace muster::agent {

class Renewal {
 public:
  struct Options {
    std::string coordinator;
    std::string state_dir;
    std::string node;
  };
  // `renewed` is called when new credentials are on disk. `loop` outlives this.
  Renewal(Options options, Credentials credentials, EventLoop* loop,
          std::function<void(const rpc::Security& security)> renewed);
  ~Renewal();

 private:
  struct Call;
  void Schedule();
  void Ask();
  void Answered(const Call& call, const absl::Status& status);
  // How long to wait after a failure.
  absl::Duration Pause() const;

  const Options options_;
  Credentials credentials_;
  EventLoop* const loop_;
  const std::function<void(const rpc::Security& security)> renewed_;
  const std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  absl::Time next_;
};

}  // namespace muster::agent
