// A replica of a run with local steps (worker/trainer/local_steps.h), for the processes of a measurement: what the
// coordinator decides of exchanges, these read from files that all of them see, so its answers take no time of the
// link.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/file_key_value.h"
#include "bench/model.h"
#include "common/proto_time.h"
#include "worker/collectives/group.h"
#include "worker/engine/engine.h"
#include "worker/trainer/local_steps.h"

namespace muster::bench {

class Replica {
 public:
  struct Options {
    std::string folder, host;
    uint32_t replicas = 2, replica = 0, ranks = 1, rank = 0, every = 50;
  };
  // `engine` and `world`, the group of the replica's ranks, outlive it.
  static absl::StatusOr<std::unique_ptr<Replica>> Join(const Options& options, engine::Engine& engine,
                                                       const Inventory& inventory, collectives::Group* world) {
    std::unique_ptr<Replica> made(new Replica(options, engine));
    Sync sync = SyncOf(options.replicas, options.every);
    sync.set_replica(options.replica);
    auto state = trainer::OuterState::Create(made->parameters_.get(), inventory, sync);
    if (!state.ok()) return state.status();
    made->state_ = *std::move(state);
    trainer::LocalSteps::Options steps{.sync = sync, .host = options.host, .source_rank = 0, .steps = ~uint64_t{0}};
    steps.key.set_rank(options.rank);
    if (options.ranks > 1) steps.world = world;
    made->steps_ = std::make_unique<trainer::LocalSteps>(
        steps, made->state_.get(),
        [of = made.get()](const SyncRequest& request, const trainer::Begun&) { return of->Decide(request); }, [] {});
    if (absl::Status started = made->steps_->Start(); !started.ok()) return started;
    return made;
  }

  absl::Status AfterStep() { return steps_->DueAfter(++step_) ? steps_->AfterStep(step_) : absl::OkStatus(); }

 private:
  Replica(const Options& options, engine::Engine& engine)
      : options_(options), files_(options.folder), parameters_(trainer::ParametersOf(engine)) {}

  static std::string Name(const char* what, uint64_t exchange, uint32_t replica, uint32_t rank) {
    return absl::StrCat("sync/", what, "/", exchange, "/", replica, "/", rank);
  }
  // Waits as the coordinator does.
  absl::StatusOr<SyncReply> Decide(const SyncRequest& request) {
    const absl::Time until = absl::Now() + FromProto(request.wait());
    while (true) {
      SyncReply reply = DecideNow(request);
      bool waits = request.offers() && reply.decision() == SyncReply::WAIT;
      for (const SyncPeer& peer : reply.peers()) {
        waits = waits && std::count(request.holds().begin(), request.holds().end(), peer.replica()) > 0;
      }
      if (!waits || absl::Now() > until) return reply;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }
  // An exchange counts once all ranks of all replicas hold the contributions of all.
  SyncReply DecideNow(const SyncRequest& request) {
    SyncReply reply;
    reply.set_secret("measured");
    reply.set_decision(SyncReply::WAIT);
    if (!request.offers()) return reply;
    const auto own = [&](const char* what) { return Name(what, request.exchange(), options_.replica, options_.rank); };
    (void)files_.Set(own("offer"), request.address());
    if (request.holds_size() == static_cast<int>(options_.replicas)) (void)files_.Set(own("held"), "");
    bool all_hold = true;
    for (uint32_t replica = 0; replica < options_.replicas; ++replica) {
      const auto found = [&](const char* what, uint32_t rank) {
        return files_.Wait(Name(what, request.exchange(), replica, rank), absl::ZeroDuration());
      };
      for (uint32_t rank = 0; rank < options_.ranks; ++rank) all_hold = found("held", rank).ok() && all_hold;
      // The first rank fetches from other replicas, and the others from it once it has all.
      const auto address = found("offer", 0);
      if (!address.ok()) continue;
      if (replica != options_.replica && options_.rank != 0 && !FirstHolds(request.exchange())) continue;
      SyncPeer& peer = *reply.add_peers();
      peer.set_replica(replica), peer.set_address(*address);
    }
    if (!all_hold) return reply;
    reply.set_decision(SyncReply::APPLY), reply.set_exchange(request.exchange() + 1);
    for (uint32_t replica = 0; replica < options_.replicas; ++replica) reply.add_members(replica);
    return reply;
  }

  bool FirstHolds(uint64_t exchange) {
    return files_.Wait(Name("held", exchange, options_.replica, 0), absl::ZeroDuration()).ok();
  }

  const Options options_;
  FileKeyValue files_;
  uint64_t step_ = 0;
  std::unique_ptr<trainer::Parameters> parameters_;
  std::unique_ptr<trainer::OuterState> state_;
  std::unique_ptr<trainer::LocalSteps> steps_;
};

}  // namespace muster::bench
