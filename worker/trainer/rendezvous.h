// The generation's rendezvous, asked through the worker daemon (Trainer.Set and .Wait), which carries it over an
// absence of the coordinator; an absence of the worker is carried over here.
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
  // `socket`: the worker's. `patience`: of Set. `interrupted` is asked about once a second while a call waits, by any
  // thread.
  Rendezvous(const std::string& socket, RankKey key, absl::Duration patience, std::function<bool()> interrupted);

  // Besides KeyValue's errors. Unavailable: neither worker nor coordinator took it within `patience`.
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
