// The generation's rendezvous, reached through the worker daemon (Trainer.Set and .Wait). The worker retries while the
// coordinator is away; this class retries while the worker is away.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "proto/trainer_service.grpc.pb.h"
#include "proto/worker.pb.h"
#include "worker/collectives/key_value.h"

namespace muster::trainer {

// Thread-safe.
class Rendezvous final : public collectives::KeyValue {
 public:
  // `socket`: the worker's. `patience`: how long Set retries. `interrupted` is polled about once a second while a call
  // waits, from any thread.
  Rendezvous(const std::string& socket, RankKey key, absl::Duration patience, std::function<bool()> interrupted);

  // Errors beyond KeyValue's. Unavailable: the worker or the coordinator was away for `patience`.
  // Cancelled: interrupted. Aborted: the generation has ended. ResourceExhausted: value or generation too large.
  absl::Status Set(const std::string& name, const std::string& value) override;
  absl::StatusOr<std::string> Wait(const std::string& name, absl::Duration timeout) override;

 private:
  const std::unique_ptr<Trainer::Stub> stub_;
  const RankKey key_;
  const absl::Duration patience_;
  const std::function<bool()> interrupted_;
};

}  // namespace muster::trainer
