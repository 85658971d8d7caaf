// Times a compressed sum, as collectives::TimeCollective times an exact one.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/spec.pb.h"
#include "worker/collectives/group.h"
#include "worker/collectives/timed.h"

namespace muster::compression {

struct SumTimingOptions {
  Compression compression;                         // resolved; with a kind that compresses
  uint64_t bytes = 0;                              // of fp32 gradients, at least one
  uint64_t bucket_bytes = 0;                       // a sum for each so many bytes, all in flight together; 0: one sum
  absl::Duration about = absl::Milliseconds(150);  // how long to repeat it
};

// Random gradients are compressed, sent and decoded again and again, with error feedback. PowerSGD's matrices are a
// square for each bucket. Bandwidths count the bytes of the gradients, not of what travels, so that they compare with
// those of exact sums. Called by all ranks with the same options; the same answer on all. `progress` is called before
// each call of the group. Errors are those of the collectives. Internal: the sum is not what a compressed sum may be.
absl::StatusOr<collectives::Timing> TimeCompressedSum(collectives::Group& group, const SumTimingOptions& options,
                                                      c10::Device device, absl::FunctionRef<void()> progress);

}  // namespace muster::compression
