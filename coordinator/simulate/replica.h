// The part of a gang that exchanges local steps with the other replicas of its run (worker/trainer/local_steps.h),
// without a delay: each rank offers what it contributes, fetches what others offer, and asks until the exchange is
// decided; then all of them apply it, or all catch up. What is contributed is a number that is different each time that
// one is made.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/simulate/gang.h"
#include "coordinator/simulate/world.h"
#include "proto/worker.pb.h"

namespace muster::simulate {

class Replica {
 public:
  // Both outlive it.
  Replica(World* world, const Gang* gang, const Sync& sync);

  uint32_t fragments() const { return sync_.fragments(); }
  // The fragment that is exchanged after a step.
  std::optional<uint32_t> DueAfter(uint64_t step) const;
  // Calls `done` once the result is applied on all ranks; never if one of them ends before.
  void Exchange(uint32_t fragment, bool offers, std::function<void()> done);
  bool exchanging() const { return done_ != nullptr; }

  // For checkpoints.
  const Outers& outers() const { return outers_; }
  void Load(const Outers& outers) { outers_ = outers; }

 private:
  enum class Kind { kCurrent, kApply, kCatchUp, kSkip };
  struct Held {
    uint64_t content = 0, generation = 0, step = 0;
  };
  struct Result {
    Kind kind = Kind::kCurrent;
    uint64_t exchange = 0;
    uint64_t content = 0;
  };
  // Of one rank in an exchange.
  struct Part {
    std::map<uint32_t, Held> held;  // by replica, its own included
    std::optional<Result> result;
  };
  using Member = std::shared_ptr<Process>;
  using Answered = std::function<void(const absl::StatusOr<SyncReply>&)>;

  // The rank that a rank of another replica fetches from.
  uint32_t SourceOf(uint32_t rank) const { return alike_ ? 0 : rank; }
  void Depart(bool offers);
  void Ask(const Member& member, uint64_t round);
  void Act(const Member& member, uint64_t round, const SyncReply& reply);
  // Whether it got something.
  bool FetchOffers(const Process& process, const SyncReply& reply);
  void FetchState(const Member& member, uint64_t round, const SyncReply& reply);
  void Apply(const Process& process, const SyncReply& reply);
  void Arrive(uint64_t round);
  void Take(const Result& result);
  // Others learn that the rank has the newest exchange.
  void Report(const Member& member, uint64_t round, uint32_t fragment);
  SyncRequest RequestOf(const Process& process, uint32_t fragment, bool offers) const;
  void Call(const Member& member, const SyncRequest& request, absl::Duration wait, const Answered& answered);
  // The replica that serves at that address, if this one reaches it now; and the rank there.
  const Replica* Reach(const std::string& address, uint32_t& rank) const;

  World* const world_;
  const Gang* const gang_;
  const Sync sync_;
  const bool alike_;  // all ranks have the same share of the model
  Outers outers_;
  uint64_t round_ = 0;  // exchanges, and times that one was begun again
  uint32_t fragment_ = 0;
  bool offers_ = false;
  std::map<uint32_t, Part> parts_;  // by rank
  std::function<void()> done_;
  SteadyTime unreachable_until_;
};

}  // namespace muster::simulate
