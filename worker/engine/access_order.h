// Finds two ops that could touch the same memory at the same time, in one run and without luck: it knows what each op
// touches, and which ops are ordered by streams and waits alone (vector clocks: Mattern, 1989). For tests and for
// hunting a fault; production runs without it.
//
//   AccessOrder order;
//   auto gathered = order.Run("Gather h.0", Stream::kGather, {}, {Writes(slot)}).value();
//   order.Run("Forward h.0", Stream::kCompute, {gathered}, {Reads(slot)});   // without {gathered}: FailedPrecondition
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "strategies/schedule/ops.h"
#include "worker/engine/stream_driver.h"

namespace muster::engine {

struct Access {
  uintptr_t begin = 0, end = 0;  // bytes of memory
  bool write = false;
};
Access Reads(const at::Tensor& contiguous);
Access Writes(const at::Tensor& contiguous);  // or reads and writes

// Not thread-safe.
class AccessOrder {
 public:
  // By stream, kCopyStream too: how many of its ops have ended at some point.
  using Clock = std::array<int64_t, kDeviceStreams>;

  // Whether ops of one stream other than kCompute begin only after the one before has ended, as on a device. On a CPU
  // several collectives of a stream may be in flight, and only their ends are ordered.
  explicit AccessOrder(bool begins_in_order) : begins_in_order_(begins_in_order) {}

  // An op on `stream`, after ops that ended at the clocks `after`. Returns the clock of its end. FailedPrecondition: an
  // earlier op, which may not have ended when this one begins, touches the same memory, and one of the two writes.
  absl::StatusOr<Clock> Run(const std::string& name, Stream stream, absl::Span<const Clock> after,
                            absl::Span<const Access> accesses);
  // All ops so far have ended before any later one begins, except those of kCopyStream: between two steps.
  void Fence();

 private:
  struct Past {
    Access access;
    Stream stream;
    int64_t number;  // in its stream, from 1
    std::string name;
  };

  const bool begins_in_order_;
  std::array<Clock, kDeviceStreams> ended_{};  // by stream: at the end of its last op
  Clock fence_{};
  std::vector<Past> past_;  // what a later op may still conflict with
};

}  // namespace muster::engine
