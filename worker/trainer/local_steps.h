// Exchanges with the other replicas of a run with local steps (spec.proto, Sync), as one rank sees them.
//
//   LocalSteps sync(assignment, rank, link, pulse);
//   sync.Start();                                            // catches up, if the others went on
//   while (...) {
//     ...                                                    // a step
//     if (sync.DueAfter(step)) sync.AfterStep(step).value();  // on all ranks of the replica
//   }
//
// What a rank contributes is made after the same step on all ranks of the replica, and the result is applied `delay`
// steps later; between the two a thread of this class fetches the contributions of others. Which ones count, the
// coordinator decides once for all (coordinator/core/exchanges.h). While the coordinator is away, a replica trains up
// to the step at which it needs a decision, and waits there.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/worker.pb.h"
#include "worker/collectives/group.h"
#include "worker/trainer/outer_state.h"
#include "worker/trainer/replica_server.h"

namespace muster::trainer {

// The steps after which fragments are exchanged. Fragment f of F: every `every` steps, the first time after
// (f + 1) * every / F.
std::optional<uint32_t> BeginsAfter(const Sync& sync, uint64_t step);  // a fragment's contribution is made
std::optional<uint32_t> EndsAfter(const Sync& sync, uint64_t step);    // its exchange is applied

// Position in the data's order at which a replica's samples of a step begin. `consumed`: by all replicas, before the
// step.
inline uint64_t FirstSampleOf(uint64_t consumed, uint64_t sequences, uint32_t replica) {
  return consumed + sequences * replica;
}

class LocalSteps {
 public:
  struct Options {
    RankKey key;
    Sync sync;
    std::string host;      // address of this machine that other replicas reach
    std::string layout;    // as SyncRequest
    uint32_t source_rank;  // this rank, or the first one with the same share of the model
    uint64_t steps = 0;    // of the job
    Device device = DEVICE_CPU;
    collectives::Group* world = nullptr;  // null: the rank is alone
  };
  // The coordinator, from any thread.
  using Ask = std::function<absl::StatusOr<SyncReply>(const SyncRequest&, const Begun&)>;
  // `state` outlives it. `waiting` is called several times a second while the owner's thread waits.
  LocalSteps(Options options, OuterState* state, Ask ask, std::function<void()> waiting);
  ~LocalSteps();

  // Before the first step. Errors as AfterStep.
  absl::Status Start();
  bool DueAfter(uint64_t step) const;
  // Unavailable: another rank of this replica failed. FailedPrecondition, InvalidArgument: as Workers.Sync. Others as
  // OuterState's.
  absl::Status AfterStep(uint64_t step);

 private:
  enum class Kind { kCurrent, kApply, kCatchUp, kSkip };
  struct Result {
    absl::Status status;
    Kind kind = Kind::kCurrent;
    uint64_t exchange = 0;
    std::map<uint32_t, Bytes> contributions;  // by replica
    std::string state;
  };
  struct Flight {
    uint32_t fragment = 0;
    uint64_t step = 0;  // after which it departs; 0: before the first one
    Bytes own;          // null: nothing is offered
  };
  void Depart(uint32_t fragment, Bytes own, uint64_t step = 0);
  absl::Status Arrive();
  Result Run(const Flight& flight);
  // A contribution, and the generation of the replica that made it, after which step.
  struct Held {
    Bytes bytes;
    uint64_t generation = 0, step = 0;
  };
  // Fetches what `peers` offer and `held` lacks, or has another one of. Whether it got something.
  bool FetchOffers(const Flight& flight, uint64_t base, const SyncReply& reply, std::map<uint32_t, Held>& held);
  bool FetchState(const Flight& flight, const SyncReply& reply, Result& result);
  absl::StatusOr<Fetched> Fetch(const std::string& address, uint32_t fragment, const uint64_t* base, uint32_t replica);
  SyncRequest RequestOf(uint32_t fragment, const std::map<uint32_t, Held>& held) const;
  absl::StatusOr<bool> AllHave(const Result& own) const;
  absl::Status Take(const Result& result, uint32_t fragment);
  bool Pause(absl::Duration time);  // false: the flight is cancelled
  Begun Interruptible();            // of a call that Join interrupts
  void Join();
  bool source() const { return options_.source_rank == options_.key.rank(); }

  const Options options_;
  OuterState* const state_;
  const Ask ask_;
  const std::function<void()> waiting_;
  std::unique_ptr<ReplicaServer> server_;
  std::optional<Flight> flight_;  // departed and not arrived

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Result> result_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> interrupt_ ABSL_GUARDED_BY(mutex_);  // the call in progress; null: none
  std::string secret_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;  // of the flight
};

}  // namespace muster::trainer
