// A Group whose collectives run on a device, by a DeviceTransport: the order of issue, deadlines, a watchdog thread,
// failure, and the end. MakeNccl (nccl.h) makes one for GPUs.
//
// The watchdog looks for errors of the transport and for collectives past their deadline. On a failure, in
// this order: every call of the group fails from now on; the communicator is aborted, so that no kernel waits without
// end; the peers are asked who is at fault. So no result of an aborted collective is ever taken for good: Health fails
// before the abort begins.
//
// While a CUDA graph is captured the watchdog asks no event and goes on to look for errors of the transport; an
// enqueueing keeps its deadline. What cannot be captured fails the group only if the transport is not usable any more.
// Once a graph has been captured the watchdog's thread alone aborts, because the abort waits until the caller has
// destroyed the graph.
//
// A call that returns the failure waits for the names of the peers, for at most `name_patience`, and holds no lock
// meanwhile; after that it returns the cause without them, and later calls return both. done never waits.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "worker/collectives/device_transport.h"
#include "worker/collectives/group.h"

namespace muster::collectives {

struct DeviceGroupOptions {
  int rank = 0;
  int size = 1;
  c10::Device device = c10::kCPU;
  absl::Duration timeout = absl::Minutes(5);  // of a collective, from its issue
  // How long the destructor waits for the device to finish the last collectives, which other ranks may still need, and
  // then as long again for the clean end of the communicator. Past that it aborts.
  absl::Duration drain = absl::Seconds(5);
  absl::Duration name_patience = absl::Seconds(3);
  absl::Duration watch = absl::Milliseconds(50);  // how often the watchdog looks
  std::function<uint64_t()> count;                // counts one more collective of this rank; its number. Peers::Issue
  std::function<std::string()> diagnose;          // names the ranks at fault; may take seconds. Peers::Diagnose
};

class DeviceGroup : public Group {
 public:
  virtual c10::Device device() const = 0;
  // The group of those ranks of this one that give the same `color`, ordered by `part.rank`; null for kNoColor, the
  // color of a rank that is in no part and of which nothing in `part` is used. Every rank calls it, in the same order
  // of splits; first waits until the device has finished this group's collectives. Unavailable: not all ranks came
  // within the group's timeout, which fails this group, too. Throws as MakeDeviceGroup.
  virtual absl::StatusOr<std::unique_ptr<DeviceGroup>> Split(int color, DeviceGroupOptions part) = 0;
};

// Throws what LibTorch throws if the device has no memory. Works may outlive the group; their calls then return
// Cancelled. Unavailable is the error of all else; InvalidArgument, from Wait: what the transport's Check refuses,
// which leaves the group usable.
std::unique_ptr<DeviceGroup> MakeDeviceGroup(DeviceGroupOptions options, std::unique_ptr<DeviceTransport> transport);

}  // namespace muster::collectives
