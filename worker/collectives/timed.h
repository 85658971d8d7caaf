// Times a collective among all ranks of a group, as nccl-tests does (its doc/PERFORMANCE.md): in place, the mean over
// iterations and ranks.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

enum class Timed { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce };

// The groups by which all ranks work in two levels: those of a node, and those of equal places on all nodes. Of all
// ranks, rank r is rank r % inside->size() of `inside` and rank r / inside->size() of `between`.
struct Levels {
  Group* inside = nullptr;
  Group* between = nullptr;
};
// Broadcast and reduce have one.
bool HasTwoLevels(Timed collective);

struct TimingOptions {
  Timed collective = Timed::kAllReduce;
  Levels levels = {};                              // null: one call of the group of all ranks
  uint64_t bytes = 0;                              // of a gather or scatter: of all ranks together
  uint64_t bucket_bytes = 0;                       // a call for each so many bytes, all in flight together; 0: one call
  absl::Duration about = absl::Milliseconds(150);  // how long to repeat it; at least once, at most 100 times
};

struct Timing {
  uint64_t bytes = 0;  // rounded down to what the ranks can divide, at least an element for each
  uint64_t count = 0;  // floats; of a gather or scatter, of one rank
  uint32_t iterations = 0;
  double seconds = 0;  // of one
  double algorithm_bytes_per_second = 0;
  double bus_bytes_per_second = 0;
};

// What is timed: all ranks of a group call each at the same point.
struct Repeatable {
  std::function<absl::Status()> run;
  std::function<absl::Status()> settle;  // until the device has done it, and for its errors
  std::function<absl::Status()> check;   // after the first run
};
struct Repeated {
  uint32_t iterations = 0;
  double seconds = 0;  // of one
};
// Once to warm up and to check, once to find how often fits into `about`, then as often.
absl::StatusOr<Repeated> TimeRepeated(Group& group, const Repeatable& repeatable, absl::Duration about,
                                      c10::Device device);

// The factor from algorithm to bus bandwidth among so many ranks.
double BusFactor(Timed collective, int ranks);

// Called by all ranks with the same options; the same answer on all. Roots are rank 0. `progress` is called before each
// call of the group. Errors are those of the collectives. Internal: a result was wrong.
absl::StatusOr<Timing> TimeCollective(Group& group, const TimingOptions& options, c10::Device device,
                                      absl::FunctionRef<void()> progress);

}  // namespace muster::collectives
