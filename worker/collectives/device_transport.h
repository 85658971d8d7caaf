// What a group needs of a device: starting collectives on a stream of their own, events, errors that come later, and
// the end of the communicator. nccl.cc implements it with NCCL and CUDA; tests implement it without a device, so that
// the group's logic (device_group.h) is the same code on every machine.
//
// Nothing here throws: every error is a Status. Nothing but Abort waits for the device or for another rank.
//
// The group makes one call at a time, from any of its threads, and none after Abort or Destroy. Check and the methods
// of DeviceEvent are the exceptions: they may be called at any time, from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

// The color of a rank that is in no part of a split.
inline constexpr int kNoColor = -1;

// A collective as Group defines it. No part is empty. Without parts: only orders the communication stream after the
// current one.
struct DeviceCollective {
  enum class Kind { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kReduce, kSend, kRecv, kAllToAll };
  Kind kind = Kind::kAllReduce;
  // `root` is the peer of a send or receive; all-gathers and the like ignore it. An all-to-all has for each other rank
  // what is sent to it, then what is received.
  std::vector<RankShare> parts;
};

// A point on the communication stream.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Whether the device has reached it. An error is the device's; it stays.
  virtual absl::StatusOr<bool> Reached() const = 0;
  // Makes the calling thread's current stream wait for it, and returns at once.
  virtual absl::Status Block() const = 0;
};

class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;

  // InvalidArgument: the collective cannot be done, for example for its dtype.
  virtual absl::Status Check(const DeviceCollective& collective) const = 0;
  // Enqueues the collective on the communication stream, after all that the calling thread's current stream holds now.
  // False: the enqueueing is still in progress; call Ready until it is not, and nothing else but Abort before that.
  // After an error, also one during the capture of a graph, Ready says whether the communicator can be used any more.
  virtual absl::StatusOr<bool> Begin(const DeviceCollective& collective) = 0;
  // Whether the last Begin or Finalize has ended. Also finds the errors of collectives in progress: the network's, or a
  // rank's that is gone.
  virtual absl::StatusOr<bool> Ready() = 0;
  // The point on the stream after all that was enqueued.
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() = 0;

  // Makes the transport of a part of the ranks: of those that give the same `color`, in the order of `key`. Every rank
  // of this one calls it, when the device has finished every collective. None: still in progress; call it again, and
  // nothing else but Ready and Abort before it has ended. Null, for kNoColor: the rank is in no part.
  using Part = std::optional<std::unique_ptr<DeviceTransport>>;
  virtual absl::StatusOr<Part> Split(int color, int key) = 0;

  // The clean end, when the device has finished every collective: Finalize, as Begin; when ready, Destroy.
  virtual absl::StatusOr<bool> Finalize() = 0;
  virtual absl::Status Destroy() = 0;
  // The other end, at any time: a split and collectives in progress end at once, with garbage as results, and streams
  // that wait for them continue. Returns when no tensor is read or written any more, and when all CUDA graphs with
  // collectives of this transport are destroyed: NCCL's commDestroySync waits for them, also in an abort.
  virtual void Abort() = 0;
};

}  // namespace muster::collectives
